// What of XLA's FFI, version 0.3, is used here: buffers, attributes and errors of a call. Our own declaration of its layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eitri::python::xla {

struct Extension {
  size_t struct_size;
  int type;  // 1: the runtime asks for metadata, nothing is to be run
  Extension* next;
};
struct ApiVersion {
  size_t struct_size;
  Extension* extension;
  int major, minor;
};
struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
  int64_t state_type;  // 0: none
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};
struct Error;
struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extension;
  const char* message;
  int code;  // those of absl::StatusCode
};
struct Api {
  size_t struct_size;
  Extension* extension;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorCreateArgs*);
};
struct Buffer {
  size_t struct_size;
  Extension* extension;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;  // row-major
};
struct ByteSpan {
  const char* data;
  size_t size;
};
struct Scalar {
  int dtype;
  void* value;
};
struct Buffers {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;  // 1: a buffer
  void** items;
};
struct Attributes {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;  // 3: Scalar, 4: ByteSpan
  ByteSpan** names;
  void** items;
};
struct CallFrame {
  size_t struct_size;
  Extension* extension;
  const Api* api;
  void* context;
  int stage;  // 3: execute
  Buffers args, results;
  Attributes attributes;
  void* future;
};
using Handler = Error*(CallFrame*);

}  // namespace eitri::python::xla
