// rmsnorm.simt.block_per_row: a block takes a row. Its threads keep the row's values in registers as they lie in memory (after
// the residual is added and rounded), sum the squares, and use the values again for the output: memory is read once and
// written once, and bounds it.
//
// Where registers allow it (early_weights), weights are fetched together with the row; else they are read when they are needed, from a
// cache. Quantised rows with early weights keep value x weight instead of the value (products). A code does not depend on the factor, which
// is in the scale as well: codes are those of the products over their largest magnitude, so a group of 128, which finds its own within a warp,
// writes them before the sum is known, and a row finds both behind one barrier. Where such products could leave the range of normal numbers
// (is_ordinary), and without products, a row takes the long way, in the order of the reference: the normed values, their largest magnitude
// by a reduction of its own, and the values again.
//
// Long rows, where there are few, are shared by two blocks of a cluster (row_blocks, device/cluster.h): one multiprocessor would issue the
// instructions of 43 KB. What a row needs is computed before the kernel waits for the ones before it.
//
// Measured on an H200, 2026-11-30, `eitri bench rmsnorm`, bench/results/gpu-h200.json, with residual, at 7168 columns (1.78 and 1.75 us before
// codes came first and blocks in pairs): f8e4m3 for 128 columns 1.41 us for one row, i8 a row 1.36.
//
// With chunks == 0, rows of any length are read again in every pass (each thread reads what it wrote itself, so in-place calls are fine
// there too).
//
// Compiled with EITRI_THREADS the file has the entry rmsnorm_block_per_row for the form that the other macros say; EITRI_ROWS is
// the kind of access (device/row.h).
#pragma once

#include "device/row.h"  // first: it bounds thread()

#include "device/cluster.h"
#include "ops/rmsnorm/simt_params.h"

namespace eitri::EITRI_SIMT {

/// A chunk of a row as it lies in memory.
template <RmsNormForm kForm, int kWide> struct RmsNormInput {
  Raw<kForm.x, kWide> x;
  Raw<kForm.residual == DType::none ? kForm.x : kForm.residual, kWide> residual;
};

/// What is normed of it: x, or x + residual as stored in residual_out.
template <RmsNormForm kForm, Rows kRows, DType kSum, int kWide>
EITRI_INLINE Raw<kSum, kWide> summed(const RmsNormInput<kForm, kWide>& in, const RmsNormTask& t, int64_t row, Column<kRows> first,
                                     Column<kRows> hidden) {
  if constexpr (kForm.residual == DType::none) {
    return in.x;
  } else {
    Raw<kSum, kWide> sum;
    if constexpr (kForm.x == kSum) {
      sum = added(in.x, in.residual);
    } else {
      float a[kWide], b[kWide];
      unpack(in.x, a);
      unpack(in.residual, b);
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) a[e] += b[e];
      sum = pack<kSum>(a);
    }
    store_raw<kSum, kWide, kRows>(sum, byte_at(t.residual_out, row * t.residual_out_stride), first, hidden);
    return sum;
  }
}

/// values * factor * weight.
template <RmsNormForm kForm, DType kSum, int kWide, class Weights>
EITRI_INLINE void normed(const Raw<kSum, kWide>& sum, const Weights& weights, float factor, float (&out)[kWide]) {
  unpack(sum, out);
  EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] *= factor;
  if constexpr (kForm.weight != DType::none) {
    float w[kWide];
    unpack(weights, w);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] *= kForm.norm_weight == NormWeight::plus_one ? 1.0f + w[e] : w[e];
  }
}

/// 1 / x of a number of the range that reciprocal() takes; 0 for 0.
EITRI_INLINE float inverse_of(float x) {
  const float inverse = reciprocal(x == 0.0f ? 1.0f : x);
  return x == 0.0f ? 0.0f : inverse;
}

/// Numbers whose products with each other, and with scales made of them, are normal.
EITRI_INLINE bool is_ordinary(float x) { return x >= power_of_two(-50) && x <= power_of_two(50); }
/// Of the largest of some products, and the factor that is still to come: none of the products lost a value that counts. All are 0 where
/// they are below 2^-149 at least, and with a factor this small too little for a scale.
EITRI_INLINE bool is_ordinary(float largest, float factor) {
  return is_ordinary(largest) || (largest == 0.0f && factor <= power_of_two(20));
}

template <RmsNormForm kForm, Rows kRows> EITRI_INLINE void rmsnorm_block_per_row(const RmsNormGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>, kBlocks = kForm.row_blocks, kThreads = kForm.threads * kBlocks;  // of a row
  constexpr DType kSum = kForm.residual == DType::none ? kForm.x : kForm.residual;
  constexpr DType kWeight = kForm.weight == DType::none ? kForm.x : kForm.weight;
  constexpr bool kKeep = kForm.chunks > 0;
  constexpr int kKept = kKeep ? kForm.chunks : 1;
  constexpr bool kEarly = (kForm.early_weights && kForm.weight != DType::none) &&
                          (kForm.products || kRows == Rows::vectors);  // of rows read by elements they would spill
  // Quantised rows of products; the values are read again when a row has to go the long way.
  constexpr bool kProducts = kForm.products;
  constexpr bool kValues = kKeep && !kProducts;
  static_assert(kKeep || !kForm.early_weights);
  static_assert(!kProducts || (kKeep && kForm.quant != Quant::none && (kEarly || kForm.weight == DType::none)));
  const RmsNormTask& t = grid.task;
  const auto hidden = static_cast<Column<kRows>>(t.hidden);
  const int64_t chunks = kKeep ? kKept : (t.hidden + kThreads * kWide - 1) / (kThreads * kWide);
  const int me = kBlocks == 1 ? thread() : cluster_rank() * kForm.threads + thread();            // of the row's threads
  const int64_t first_row = block() / kBlocks, step = kBlocks == 1 ? grid.blocks : grid.tokens;  // pairs take one row each
  const auto first_of = [me](int64_t c) { return static_cast<Column<kRows>>(static_cast<Column<kRows>>(c) * kThreads + me) * kWide; };

  using Reduce = RowReduce<kForm.threads, kBlocks>;
  EITRI_SHARED typename Reduce::Partials partials;
  Reduce reduce(partials);

  launch_dependents();
  constexpr DType kResidual = kForm.residual == DType::none ? kForm.x : kForm.residual;
  ThreadChunks<kForm.x, kThreads, kWide> x(t.x, t.x_stride, first_row, me);
  ThreadChunks<kResidual, kThreads, kWide> residual(t.residual, t.residual_stride, first_row, me);
  // More of the early blocks would stand in the way of the kernel before: on an H200 4096 x 4096 bf16 3.87 TB/s with 2048, 4.00 with 264.
  if (is_early_block(264) && first_row < grid.tokens) {
    x.prefetch(kKept, me, t.hidden);
    if constexpr (kForm.residual != DType::none) residual.prefetch(kKept, me, t.hidden);
    // Once: a thousand blocks that ask for the same lines stand in each other's way.
    if (kForm.weight != DType::none && first_row == 0) prefetch_row<kThreads>(t.weight, t.hidden * kBytesOf<kWeight>, me);
  }
  x.settle();
  residual.settle();
  const unsigned char* weight_at = nullptr;
  if constexpr (kForm.weight != DType::none && kRows == Rows::vectors) {
    weight_at = byte_at(t.weight, me * kWide * kBytesOf<kWeight>);
    settle(weight_at);
  }
  for (int64_t row = first_row; row < grid.tokens; row += step) {
    wait_for_dependencies();
    const auto load = [&](int64_t c) {
      RmsNormInput<kForm, kWide> chunk;
      chunk.x = load_raw_at<kForm.x, kWide, kRows>(x[c], first_of(c), hidden);
      if constexpr (kForm.residual != DType::none)
        chunk.residual = load_raw_at<kForm.residual, kWide, kRows>(residual[c], first_of(c), hidden);
      return chunk;
    };
    // All loads before the first store, which the compiler must not pass with them.
    RmsNormInput<kForm, kWide> in[kKept];
    Raw<kSum, kWide> kept[kKept];
    float products[kKept][kWide], largest[kKept] = {};
    Raw<kWeight, kWide> weights[kKept] = {};
    if constexpr (kKeep) for_each_chunk<kKept>(chunks, [&](int64_t c) { in[c] = load(c); });
    if constexpr (kEarly)
      for_each_chunk<kKept>(chunks, [&](int64_t c) {
        if constexpr (kRows == Rows::vectors)
          weights[c] = load_raw_at<kWeight, kWide, kRows>(weight_at + c * kThreads * kWide * kBytesOf<kWeight>, first_of(c), hidden);
        else weights[c] = load_raw<kWeight, kWide, kRows>(t.weight, first_of(c), hidden);  // an address of its own takes registers
      });
    float squares = 0.0f, v[kWide];
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      if constexpr (!kKeep) in[0] = load(c);
      const auto sum = summed<kForm, kRows, kSum>(in[kKeep ? c : 0], t, row, first_of(c), hidden);
      if constexpr (kKeep) kept[c] = sum;
      unpack(sum, v);
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) squares = fma(v[e], v[e], squares);
      if constexpr (kProducts) {
        normed<kForm>(sum, weights[c], 1.0f, products[c]);
        largest[c] = 0.0f;
        EITRI_UNROLL for (int e = 0; e < kWide; ++e) largest[c] = max_or_nan(largest[c], magnitude(products[c][e]));
      }
    });
    constexpr int kLanes = 128 / kWide;  // of a group: adjacent, in one warp
    constexpr bool kOfRow = kForm.quant == Quant::per_token;
    void* const out = byte_at(t.out, row * t.out_stride);
    float* const scale = t.scale + row * t.scale_row_stride;
    x.next(step * t.x_stride);
    residual.next(step * t.residual_stride);
    // The factor is in a scale and in its elements: codes are those of the products, whatever it is.
    const auto store_products = [&](int64_t c) {
      const float inverse = inverse_of(largest[c]) * largest_of<kForm.out>();
      store_codes<kForm.out, kRows>(products[c], inverse, true, out, first_of(c), hidden);
    };
    if constexpr (kProducts && kOfRow) {
      for_each_chunk<kKept>(chunks, [&](int64_t c) { largest[0] = max_or_nan(largest[0], largest[c]); });
      reduce.sum_and_largest(squares, largest[0]);
      for_each_chunk<kKept>(chunks, [&](int64_t c) {
        largest[c] = largest[0];
        store_products(c);
      });
    } else if constexpr (kProducts) {
      for_each_chunk<kKept>(chunks, [&](int64_t c) { largest[c] = group_reduce<kLanes>(largest[c], LargestOrNan{}); });
      for_each_chunk<kKept>(chunks, store_products);
    }
    if constexpr (!kProducts || !kOfRow) squares = reduce.sum(squares);
    const float factor = rsqrt(quotient_by(squares, grid.columns, grid.inverse_columns) + t.eps);
    if constexpr (kProducts) {
      bool ordinary = is_ordinary(factor);
      for_each_chunk<kOfRow ? 1 : kKept>(chunks, [&](int64_t c) { ordinary &= is_ordinary(largest[c], factor); });
      if (kOfRow ? ordinary : all(ordinary)) {
        for_each_chunk<kOfRow ? 1 : kKept>(chunks, [&](int64_t c) {
          const auto first = first_of(c);
          const float value = scale_of<kForm.out>(largest[c] * factor).value;
          if (kOfRow && me == 0) *scale = value;
          if (!kOfRow && first < hidden && me % kLanes == 0) scale[first / 128 * t.scale_group_stride] = value;
        });
        continue;
      }
    }
    // Chunk c of the normed row.
    const auto value = [&](int64_t c) {
      const int64_t w = kEarly && !kProducts ? c : 0;
      if constexpr (kForm.weight != DType::none && (!kEarly || kProducts))
        weights[w] = load_raw<kWeight, kWide, kRows>(t.weight, first_of(c), hidden);
      if constexpr (kValues) {
        normed<kForm>(kept[c], weights[w], factor, v);
      } else {
        const void* source = kForm.residual == DType::none ? byte_at(t.x, row * t.x_stride)
                                                           : byte_at(static_cast<const void*>(t.residual_out), row * t.residual_out_stride);
        const auto sum = load_raw<kSum, kWide, kRows>(source, first_of(c), hidden);
        normed<kForm>(sum, weights[w], factor, v);
      }
    };
    constexpr int kPasses = kValues ? kForm.chunks : 0;
    if constexpr (kForm.quant == Quant::none) {
      for_each_chunk<kPasses>(chunks, [&](int64_t c) {
        value(c);
        store_raw<kForm.out, kWide, kRows>(pack<kForm.out>(v), out, first_of(c), hidden);
      });
    } else if constexpr (kForm.quant == Quant::per_token) {
      Magnitude magnitude;
      for_each_chunk<kPasses>(chunks, [&](int64_t c) {
        value(c);
        magnitude.add(v);
      });
      const Scale s = scale_of<kForm.out>(reduce.largest(magnitude.largest));
      if (me == 0) *scale = s.value;
      for_each_chunk<kPasses>(chunks, [&](int64_t c) {
        value(c);
        store_codes<kForm.out, kRows>(v, s.inverse, magnitude.all_finite(), out, first_of(c), hidden);
      });
    } else {
      static_assert(kForm.quant == Quant::per_1x128);
      for_each_chunk<kPasses>(chunks, [&](int64_t c) {
        value(c);
        Magnitude magnitude;
        magnitude.add(v);
        const float amax = group_reduce<kLanes>(magnitude.largest, Largest{});
        const Scale s = scale_of<kForm.out>(amax);
        const auto first = first_of(c);
        if (first < hidden && me % kLanes == 0) scale[first / 128 * t.scale_group_stride] = s.value;
        store_codes<kForm.out, kRows>(v, s.inverse, magnitude.all_finite(), out, first, hidden);
      });
    }
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
EITRI_KERNEL_FOR(EITRI_THREADS, EITRI_REGISTERS) rmsnorm_block_per_row(const eitri::RmsNormGrid grid) {
  using namespace eitri;
  EITRI_SIMT::rmsnorm_block_per_row<RmsNormForm{.x = DType::EITRI_X,
                                                .weight = DType::EITRI_WEIGHT,
                                                .residual = DType::EITRI_RESIDUAL,
                                                .out = DType::EITRI_OUT,
                                                .quant = Quant::EITRI_QUANT,
                                                .norm_weight = NormWeight::EITRI_NORM_WEIGHT,
                                                .threads = EITRI_THREADS,
                                                .chunks = EITRI_CHUNKS,
                                                .early_weights = EITRI_EARLY_WEIGHTS,
                                                .products = EITRI_PRODUCTS,
                                                .row_blocks = EITRI_ROW_BLOCKS},
                                    EITRI_SIMT::Rows::EITRI_ROWS>(grid);
}
#endif
