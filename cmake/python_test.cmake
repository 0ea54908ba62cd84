# fw_python_test(NAME FILE): a unittest file run by tests/harness/run.py against the daemon and client of this build.
# Without the Python environment (./dev makes it) the test is there and skipped, saying so.
set(FUSEWIRE_PYTHON "${CMAKE_SOURCE_DIR}/.cache/venv/bin/python" CACHE FILEPATH
  "Python with scripts/requirements.txt installed, for the end-to-end tests")
function(fw_python_test name file)
  if(EXISTS "${FUSEWIRE_PYTHON}")
    add_test(NAME ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
      COMMAND "${FUSEWIRE_PYTHON}" "${CMAKE_SOURCE_DIR}/tests/harness/run.py" ${file}
      --daemon $<TARGET_FILE:fusewired> --client $<TARGET_FILE:fusewire> --sanitizer "${FUSEWIRE_SANITIZE}")
  else()
    add_test(NAME ${name} COMMAND sh -c "echo 'SKIP: no Python environment (run ./dev test)'; exit 77")
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
