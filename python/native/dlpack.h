// What of DLPack 1.3 is read here: tensors, managed tensors and the C exchange API. Our own declaration of its layout.
#pragma once

#include <cstdint>

namespace eitri::python {

struct DlDevice {
  int32_t type;  // 1 CPU, 2 CUDA, 3 CUDA host memory, 10 ROCm
  int32_t id;
};
struct DlType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};
struct DlVersion {
  uint32_t major, minor;
};
struct DlManaged {  // capsule "dltensor"
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};
struct DlManagedVersioned {  // capsule "dltensor_versioned"
  DlVersion version;
  void* context;
  void (*deleter)(DlManagedVersioned*);
  uint64_t flags;  // bit 0: read only
  DlTensor tensor;
};
/// Capsule "dlpack_exchange_api" of a tensor type. Each function returns 0, or -1 with a Python error set.
struct DlExchange {
  DlVersion version;
  DlExchange* previous;
  int (*allocate)(DlTensor* prototype, DlManagedVersioned** out, void* context, void (*error)(void*, const char* kind, const char* text));
  int (*managed_of)(void* object, DlManagedVersioned** out);
  int (*object_of)(DlManagedVersioned* tensor, void** out);
  int (*view_of)(void* object, DlTensor* out);  // borrowed from the object
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace eitri::python
