// Weights packed into a buffer of their own, which held something else before.
#pragma once

#include <cstring>

#include "backend/cpu/memory.h"
#include "eitri/eitri.hpp"

namespace eitri {

struct Packed {
  Buffer buffer;
  View view;
};
inline Packed pack(const PackArgs& args) {
  Packed p{Buffer(packed_bytes(args)), {}};
  std::memset(p.buffer.data(), 0xa5, p.buffer.size());
  p.view = pack_weights(args, p.buffer.data());
  return p;
}

}  // namespace eitri
