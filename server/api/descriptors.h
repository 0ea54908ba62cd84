// Which .proto file has which name: an index over the FileDescriptorSet that the build embeds. Made
// once at start, then read-only.
//
// The set is read by hand, field by field (descriptor.proto's numbers): only names are needed, and
// what is sent are the file's own bytes. It is ours, so that a set that does not read is a bug.
#ifndef API_DESCRIPTORS_H
#define API_DESCRIPTORS_H

#include "base/slab.h"

#define DESCRIPTOR_FILES 16
#define DESCRIPTOR_IMPORTS 4

struct descriptor_file {
  struct slice name, package, bytes; // bytes: the serialized FileDescriptorProto
  struct slice imports[DESCRIPTOR_IMPORTS];
  int n_imports;
};

void descriptors_setup(void); // any number of times, before the first look-up
int descriptors_count(void);
const struct descriptor_file *descriptors_at(int index);
// By file name; NULL: none.
const struct descriptor_file *descriptors_named(struct slice name);
// By the full name of a service, method, message, field, enum or enum value; NULL: none.
const struct descriptor_file *descriptors_symbol(struct slice symbol);
// Whether it is the full name of a message.
bool descriptors_message(struct slice symbol);

#endif
