# cmake -D IN=FILE -D OUT=FILE.c -D NAME=name -P embed.cmake : a file's bytes as `const unsigned char name[]` and its length
# as `const unsigned long name_bytes`.
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "((0x..,){20})" "\\1\n" bytes "${bytes}")
string(LENGTH "${hex}" n)
math(EXPR n "${n} / 2")
file(WRITE "${OUT}" "extern const unsigned char ${NAME}[];\nextern const unsigned long ${NAME}_bytes;\n"
  "const unsigned char ${NAME}[] = {\n${bytes}};\nconst unsigned long ${NAME}_bytes = ${n};\n")
