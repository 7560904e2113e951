// The vocabulary of simt.h on the CPU, for tests: every lane is a fiber, and the emulator behind these functions
// (tests/simt/emulator.cpp) decides who runs. It finds barriers and warp functions that not all lanes reach, accesses
// outside of shared arrays, reads of what no lane has written, and accesses of two lanes that no barrier orders.
//
// EITRI_SIMT_EMULATED is the number of lanes in a warp, 32 or 64; both may be linked into one program. Include simt.h.
#pragma once

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__) && !defined(__AMDGCN__)

#include <cstdint>
#include <cstring>

#include "base/numeric.h"
#include "device/narrow_f8.h"

#if !defined(EITRI_SIMT_EMULATED)
#define EITRI_SIMT_EMULATED 32
#endif
#if EITRI_SIMT_EMULATED == 64
#define EITRI_SIMT simt64
#elif EITRI_SIMT_EMULATED == 32
#define EITRI_SIMT simt32
#else
#error "EITRI_SIMT_EMULATED is the lanes of a warp: 32 or 64"
#endif
#define EITRI_INLINE inline
#define EITRI_KERNEL(threads) inline void
#define EITRI_KERNEL_FOR(threads, registers) EITRI_KERNEL(threads)
#define EITRI_SHARED static
#define EITRI_UNROLL
#define EITRI_ROLL

namespace eitri::simt_emulation {

/// Where in the source a lane is; taken at the call by default arguments.
struct Site {
  const char* file;
  int line;
};

int thread();
int64_t block();
int block_size();
int64_t grid_size();
int warp_size();
int cluster_rank();
void barrier(Site site);
void cluster_barrier(Site site);
void warp_barrier(Site site);
/// Every lane of the warp gives a value and gets those of all, valid until its next call.
const uint64_t* exchange(const char* what, uint64_t mine, Site site);
[[noreturn]] void fault(const char* what, int64_t value, int64_t limit, Site site);

/// What the lanes did to an element since the block began.
struct Cell {
  enum class Kind : uint8_t { plain, atomic };
  struct Access {
    int32_t lane = -1;  // -1: none
    Kind kind = Kind::plain;
    uint32_t interval = 0, warp_interval = 0;  // barriers that the lane had passed
  };
  Access write, reads[2];
};
enum class Use : uint8_t { read, write, atomic };
/// Judges an access to element `index` of `count`; a new block (`era` is old) forgets the cells and poisons the values.
void access(Cell* cells, void* values, size_t element_bytes, int64_t count, uint64_t& era, int64_t index, Use use, Site site);

/// An index that knows where it was written.
struct Index {
  int64_t i;
  Site site;
  Index(int64_t index, const char* file = __builtin_FILE(), int line = __builtin_LINE()) : i(index), site{file, line} {}
};

}  // namespace eitri::simt_emulation

namespace eitri::EITRI_SIMT {

using simt_emulation::Site;
#define EITRI_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline constexpr int warp_size = EITRI_SIMT_EMULATED;

inline int thread() { return simt_emulation::thread(); }
inline int64_t block() { return simt_emulation::block(); }
inline int block_size() { return simt_emulation::block_size(); }
inline int64_t grid_size() { return simt_emulation::grid_size(); }
inline int lane() { return thread() % warp_size; }
inline int warp() { return thread() / warp_size; }

inline void sync(EITRI_SITE) { simt_emulation::barrier({file, line}); }
inline void sync_warp(EITRI_SITE) { simt_emulation::warp_barrier({file, line}); }

template <class T> uint64_t to_word(T x) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t word = 0;
  std::memcpy(&word, &x, sizeof x);
  return word;
}
template <class T> T from_word(uint64_t word) {
  T x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}
template <class T> T shuffle_from(const char* what, T x, int from, Site site) {
  if (from < 0 || from >= warp_size) simt_emulation::fault(what, from, warp_size, site);
  return from_word<T>(simt_emulation::exchange(what, to_word(x), site)[from]);
}
template <class T> T shuffle_idx(T x, int from, EITRI_SITE) { return shuffle_from("shuffle_idx", x, from, {file, line}); }
template <class T> T shuffle_xor(T x, int mask, EITRI_SITE) { return shuffle_from("shuffle_xor", x, lane() ^ mask, {file, line}); }
template <class T> T shuffle_down(T x, int delta, EITRI_SITE) {
  return shuffle_from("shuffle_down", x, lane() + delta < warp_size ? lane() + delta : lane(), {file, line});
}
template <class T> T shuffle_up(T x, int delta, EITRI_SITE) {
  return shuffle_from("shuffle_up", x, lane() >= delta ? lane() - delta : lane(), {file, line});
}
inline uint64_t ballot(bool yes, EITRI_SITE) {
  const uint64_t* all = simt_emulation::exchange("ballot", yes ? 1 : 0, {file, line});
  uint64_t bits = 0;
  for (int i = 0; i < warp_size; ++i) bits |= all[i] << i;
  return bits;
}
inline bool any(bool yes, EITRI_SITE) { return ballot(yes, file, line) != 0; }
inline bool all(bool yes, EITRI_SITE) { return ballot(!yes, file, line) == 0; }

inline int count_bits(uint64_t word) { return __builtin_popcountll(word); }
inline int lowest_bit(uint64_t word) { return __builtin_ctzll(word); }

/// An array that the lanes of a block share. Elements are read and written whole, by value.
template <class T, int kCount> class Shared {
 public:
  class Element {
   public:
    Element(Shared& array, simt_emulation::Index index) : array_(array), index_(index) {}
    operator T() const {
      array_.use(index_, simt_emulation::Use::read);
      return array_.values_[index_.i];
    }
    Element& operator=(T value) {
      array_.use(index_, simt_emulation::Use::write);
      array_.values_[index_.i] = value;
      return *this;
    }
    Element& operator=(const Element& other) { return *this = static_cast<T>(other); }
    Element(const Element&) = default;

   private:
    Shared& array_;
    simt_emulation::Index index_;
  };
  Element operator[](simt_emulation::Index index) { return {*this, index}; }
  T add(simt_emulation::Index index, T value) {
    use(index, simt_emulation::Use::atomic);
    const T before = values_[index.i];
    values_[index.i] = before + value;
    return before;
  }

 private:
  void use(simt_emulation::Index index, simt_emulation::Use use) {
    simt_emulation::access(cells_, values_, sizeof(T), kCount, era_, index.i, use, index.site);
  }
  T values_[kCount] = {};
  simt_emulation::Cell cells_[kCount] = {};
  uint64_t era_ = 0;
};
template <class T, int kCount> T atomic_add(Shared<T, kCount>& array, simt_emulation::Index index, T value) {
  return array.add(index, value);
}
/// Lanes take turns, so this is atomic.
template <class T> T atomic_add(T* p, T value) {
  const T before = *p;
  *p = before + value;
  return before;
}

/// 16, 8 or 4 bytes as 32-bit words, in one load or store.
template <int kBytes> struct alignas(kBytes) Words { uint32_t w[kBytes / 4]; };
template <int kBytes> Words<kBytes> load_words(const void* p, Site site) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kBytes);
  if (misaligned != 0) simt_emulation::fault("misaligned load", misaligned, kBytes, site);
  Words<kBytes> words;
  std::memcpy(words.w, p, kBytes);
  return words;
}
template <int kBytes> void store_words(void* p, Words<kBytes> words, Site site) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kBytes);
  if (misaligned != 0) simt_emulation::fault("misaligned store", misaligned, kBytes, site);
  std::memcpy(p, words.w, kBytes);
}
inline Words<16> load16(const void* p, EITRI_SITE) { return load_words<16>(p, {file, line}); }
inline Words<8> load8(const void* p, EITRI_SITE) { return load_words<8>(p, {file, line}); }
inline Words<4> load4(const void* p, EITRI_SITE) { return load_words<4>(p, {file, line}); }
inline void store16(void* p, Words<16> v, EITRI_SITE) { store_words<16>(p, v, {file, line}); }
inline void store8(void* p, Words<8> v, EITRI_SITE) { store_words<8>(p, v, {file, line}); }
inline void store4(void* p, Words<4> v, EITRI_SITE) { store_words<4>(p, v, {file, line}); }

/// A hint that has no effect here.
inline void prefetch(const void*) {}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/// sum + the products of four i8 codes in each word.
inline int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return sum;
}
/// The larger of each half, as unsigned numbers.
inline uint32_t max_halves(uint32_t a, uint32_t b) {
  const auto larger = [=](uint32_t mask) { return (a & mask) > (b & mask) ? a & mask : b & mask; };
  return larger(0xffff0000u) | larger(0xffffu);
}
inline float magnitude(float x) { return __builtin_fabsf(x); }
/// The larger one; of a number and NaN, the number.
inline float max_number(float a, float b) { return b > a || a != a ? b : a; }
/// The larger one of magnitudes; NaN if one is NaN. The bits of magnitudes are in their order, NaN last.
inline float max_or_nan(float a, float b) { return float_bits(a) > float_bits(b) ? a : b; }
/// 1 / x, for 0, infinity and magnitudes in [2^-126, 2^126].
inline float reciprocal(float x) { return 1.0f / x; }
/// The largest x of the warp, NaN if one is; none is negative.
inline float warp_largest(float x) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) x = max_or_nan(x, shuffle_xor(x, mask));
  return x;
}
/// x within [low, high]; NaN stays.
inline float bounded(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }
inline double divide(double a, double b) { return a / b; }
inline float round_even(float x) { return __builtin_rintf(x); }
inline float without_subnormals(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }
inline float fast_exp2(float x) { return without_subnormals(__builtin_exp2f(without_subnormals(x))); }
inline float fast_reciprocal(float x) { return without_subnormals(1.0f / without_subnormals(x)); }

inline float from_bf16(uint16_t code) { return decode_bf16(code); }
inline float from_f16(uint16_t code) { return decode_f16(code); }
inline uint16_t to_f16(float x) { return encode_f16(x); }
inline uint16_t to_bf16(float x) { return encode_bf16(x); }
/// Two codes in a word, the first one low.
inline uint32_t pack2_bf16(float a, float b) { return to_bf16(a) | static_cast<uint32_t>(to_bf16(b)) << 16; }
inline uint32_t pack2_f16(float a, float b) { return to_f16(a) | static_cast<uint32_t>(to_f16(b)) << 16; }
/// Sums of two codes each.
inline uint32_t add2_bf16(uint32_t a, uint32_t b) {
  return pack2_bf16(bits_float(a << 16) + bits_float(b << 16), bits_float(a & 0xffff0000u) + bits_float(b & 0xffff0000u));
}
inline uint32_t add2_f16(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t two, int i) { return from_f16(static_cast<uint16_t>(two >> (16 * i))); };
  return pack2_f16(half(a, 0) + half(b, 0), half(a, 1) + half(b, 1));
}
/// Two numbers, no NaN, whose magnitudes are bounded by those of `limits`, which are positive.
inline uint32_t bounded2_f16(uint32_t two, uint32_t limits) {
  const uint32_t magnitudes = two & 0x7fff7fffu;
  return (~max_halves(~magnitudes, ~limits) & 0x7fff7fffu) | (two & 0x80008000u);
}
inline int8_t to_i8(float x) { return encode_i8(x); }
inline uint8_t to_f8e4m3(float x) { return narrow_f8<F8e4m3>(x); }
inline uint8_t to_f8e4m3fnuz(float x) { return narrow_f8<F8e4m3fnuz>(x); }
/// Four codes of to_i8 in a word, the first one low.
inline uint32_t pack4_i8(float a, float b, float c, float d) {
  const auto byte = [](float x) { return static_cast<uint32_t>(static_cast<uint8_t>(to_i8(x))); };
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}
/// The same of magnitudes below 127.5, faster: the sum has unit 1 and is rounded to it, its low byte is the code.
inline uint32_t pack4_small(float a, float b, float c, float d) {
  const auto byte = [](float x) { return float_bits(x + 12582912.0f) & 0xffu; };  // 1.5 * 2^23
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}
inline uint32_t pack4_f8e4m3(float a, float b, float c, float d) {
  return to_f8e4m3(a) | static_cast<uint32_t>(to_f8e4m3(b)) << 8 | static_cast<uint32_t>(to_f8e4m3(c)) << 16 |
         static_cast<uint32_t>(to_f8e4m3(d)) << 24;
}
/// The values of four codes.
inline void unpack4_f8e4m3(uint32_t codes, float (&x)[4]) {
  for (int i = 0; i < 4; ++i) x[i] = widen_f8e4m3(codes >> (8 * i) & 0xffu);
}

template <class T> void settle(T*&) {}
template <class T> T forgotten(T x) { return x; }

inline void launch_dependents() {}
inline void wait_for_dependencies() {}

}  // namespace eitri::EITRI_SIMT

#endif
