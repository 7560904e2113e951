// The SIMT kernels of gemm and grouped_gemm on the operators' own cases, emulated with warps of 32 and of 64.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "backend/cpu/memory.h"
#include "base/numeric.h"
#include "device/simt_emulated.h"
#include "harness/check_row.h"
#include "ops/gemm/simt.h"
#include "ops/grouped_gemm/simt.h"
#include "simt/emulator.h"
#include "simt/gemm_kernels.h"

namespace eitri {
namespace {

using simt_emulation::Order;
using Shapes = std::vector<GemmTileShape>;

/// Sums that an emulated run may make, rows of tiles beyond m included: longer cases have shorter ones beside them that take the same
/// paths (extents around the tiles, several steps of k, several tiles).
constexpr int64_t kMostProducts = 6'000'000;

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/// Runs a kernel, with few blocks, so that they loop over tiles; the schedule changes from run to run.
template <class Grid, class Lane> std::string run_lane(Lane lane, Grid grid, int threads, int warp_size, int64_t run) {
  grid.blocks = std::min(grid.blocks, 1 + run % 4);
  return simt_emulation::run({.blocks = grid.blocks,
                              .threads = threads,
                              .warp_size = warp_size,
                              .order = static_cast<Order>(run % 3),
                              .seed = static_cast<uint64_t>(run)},
                             [&] { lane(grid); });
}

std::string run_tile(const GemmArgs& args, const Gemm::Problem& p, GemmTileShape shape, int warp_size, int64_t run) {
  const GemmTileForm form = gemm_tile_form(p, shape);
  const GemmLane lane = warp_size == 32 ? simt32::gemm_tile_lane(form) : simt64::gemm_tile_lane(form);
  if (lane == nullptr) return "no such form in the tables of tests/simt";
  return run_lane(lane, gemm_tile_grid(args, p, shape), kGemmTileThreads, warp_size, run);
}
std::string run_decode(const GemmArgs& args, const Gemm::Problem& p, int warp_size, int64_t run) {
  const GemmDecodeForm form = gemm_decode_form(p);
  const GemmLane lane = warp_size == 32 ? simt32::gemm_decode_lane(form) : simt64::gemm_decode_lane(form);
  if (lane == nullptr) return "no such form in the tables of tests/simt";
  return run_lane(lane, gemm_decode_grid(args, p), kGemmDecodeThreads, warp_size, run);
}
std::string run_grouped(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, GemmTileShape shape, int warp_size, int64_t run) {
  const GemmTileForm form = grouped_gemm_tile_form(p, shape);
  const GroupedGemmLane lane = warp_size == 32 ? simt32::grouped_gemm_lane(form) : simt64::grouped_gemm_lane(form);
  if (lane == nullptr) return "no such form in the tables of tests/simt";
  return run_lane(lane, grouped_gemm_tile_grid(args, p, shape), kGemmTileThreads, warp_size, run);
}

/// What SIMT rows take: operands of one type, scales of rows or of all.
bool is_plain(const Gemm::Problem& p) { return p.common(); }
bool is_plain(const GroupedGemm::Problem& p) { return !p.coded(); }

/// The operator's cases with plain weights, each once.
template <class Op> std::vector<typename Op::Problem> plain_cases() {
  std::vector<typename Op::Problem> out;
  std::set<std::string> keys;
  for (auto [problem, note] : Op::cases().test) {
    problem.b_format = WeightFormat::strided;
    if (is_plain(problem) && keys.insert(key_of(problem)).second) out.push_back(problem);
  }
  return out;
}

/// `run(args)` for every case, dense and with odd strides. Counts what ran.
template <class Op, class Run> int64_t check_cases(const std::vector<typename Op::Problem>& cases, Run&& run) {
  int64_t runs = 0;
  for (const auto& problem : cases) {
    for (const bool strided : {false, true}) {
      SCOPED_TRACE(testing::Message() << Op::name << " " << key_of(problem) << (strided ? " strided" : " dense"));
      Maker maker({.seed = strided ? 2u : 1u, .guards = true, .strided = strided, .poison = true});
      const auto args = Op::make(problem, maker);
      maker.seal();
      const Oracle& oracle = harness::oracle_of<Op>(problem, args, strided ? 2 : 1);
      // Both warps on dense tensors, in turn on others.
      for (const int warp_size : {32, 64}) {
        if (strided && (runs % 2 == 0) == (warp_size == 32)) continue;
        maker.poison_outputs();
        const std::string fault = run(args, problem, warp_size, runs++);
        EXPECT_EQ(fault, "") << "warp " << warp_size;
        EXPECT_EQ(harness::judge_all(Op::outputs(args), oracle, Op::tolerance(problem)), "") << "warp " << warp_size;
        EXPECT_EQ(maker.damage(), "") << "warp " << warp_size;
        if (testing::Test::HasFailure()) return runs;
      }
    }
  }
  return runs;
}

/// Shapes that the tables have for every dtype, in turn.
GemmTileShape tested_shape(const Gemm::Problem& p, int64_t run) {
  static const Shapes all = {{16, 64}, {64, 64}, {128, 128}, {32, 64}, {64, 128}, {128, 64}};
  if (p.a == DType::bf16 && run % 11 == 0) return {run % 2 == 0 ? 16 : 32, 128};
  return all[static_cast<size_t>(run) % all.size()];
}

TEST(SimtGemm, tile_equals_the_reference) {
  std::vector<Gemm::Problem> cases;
  std::set<std::string> kinds;  // dtype, gate, activation, bias: what must stay covered
  for (const Gemm::Problem& p : plain_cases<Gemm>()) {
    if (p.batch * p.m * p.n == 0) continue;
    if (p.batch * round_up(p.m, 64) * round_up(p.n, 64) * p.k > kMostProducts) continue;
    cases.push_back(p);
    kinds.insert(str(p.a, p.c));
    kinds.insert(str(p.a, p.gate, p.activation, p.bias));
  }
  EXPECT_GT(cases.size(), 400u);
  EXPECT_GT(kinds.size(), 100u);
  const int64_t runs = check_cases<Gemm>(cases, [](const GemmArgs& args, const Gemm::Problem& p, int warp_size, int64_t run) {
    return run_tile(args, p, tested_shape(p, run), warp_size, run);
  });
  EXPECT_GT(runs, 1000);
}

TEST(SimtGemm, decode_equals_the_reference) {
  std::vector<Gemm::Problem> cases;
  for (const Gemm::Problem& p : plain_cases<Gemm>())
    if (p.batch * p.m * p.n != 0 && p.m <= 17 && p.batch * round_up(p.m, 8) * p.n * p.k <= kMostProducts) cases.push_back(p);
  for (const int64_t m : {1, 2, 3, 4, 5, 8})
    for (const DType a : {DType::f32, DType::bf16, DType::f16, DType::i8})
      cases.push_back({.m = m, .n = 6, .k = 2100, .a = a, .c = DType::f32, .b_format = WeightFormat::strided});
  EXPECT_GT(cases.size(), 140u);
  const int64_t runs = check_cases<Gemm>(
      cases, [](const GemmArgs& args, const Gemm::Problem& p, int warp_size, int64_t run) { return run_decode(args, p, warp_size, run); });
  EXPECT_GT(runs, 400);
}

/// Sums as a library would leave them.
template <class T> std::vector<T> plain_sums(const GemmArgs& args, const Gemm::Problem& p, int64_t stride, T pad) {
  std::vector<T> sums(static_cast<size_t>(p.batch * p.m * stride), pad);
  for (int64_t z = 0; z < p.batch; ++z)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        const View a = args.a.rank == 3 ? slice(args.a, z) : args.a, b = args.b.rank == 3 ? slice(args.b, z) : args.b;
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += load(a, {i, k}) * load(b, {j, k});
        sums[static_cast<size_t>((z * p.m + i) * stride + j)] = static_cast<T>(sum);
      }
  return sums;
}

TEST(SimtGemm, epilogue_equals_the_reference) {
  std::vector<Gemm::Problem> cases;
  for (const Gemm::Problem& p : plain_cases<Gemm>())
    if (p.batch * p.m * p.n != 0 && p.batch * p.m * p.n * p.k <= 100'000) cases.push_back(p);
  EXPECT_GT(cases.size(), 300u);
  const int64_t runs = check_cases<Gemm>(cases, [](const GemmArgs& args, const Gemm::Problem& p, int warp_size, int64_t run) {
    const DType type = p.a == DType::i8 ? DType::i32 : DType::f32;
    const int64_t stride = run % 3 == 0 ? p.n : run % 3 == 1 ? round_up(p.n, 4) : round_up(p.n, 4) + 1;
    const std::vector<int32_t> i32 = type == DType::i32 ? plain_sums(args, p, stride, INT32_MAX) : std::vector<int32_t>();
    const std::vector<float> f32 = type == DType::f32 ? plain_sums(args, p, stride, kNan) : std::vector<float>();
    const void* sums = type == DType::i32 ? static_cast<const void*>(i32.data()) : f32.data();
    const GemmEpilogueGrid grid = gemm_epilogue_grid(gemm_finish(args, p), p, sums, p.m * stride, stride);
    const GemmEpilogueLane lane = warp_size == 32 ? simt32::gemm_epilogue_lane(type) : simt64::gemm_epilogue_lane(type);
    return run_lane(lane, grid, kGemmEpilogueThreads, warp_size, run);
  });
  EXPECT_GT(runs, 800);
}

TEST(SimtGemm, grouped_tile_equals_the_reference) {
  std::vector<GroupedGemm::Problem> cases;
  for (const GroupedGemm::Problem& p : plain_cases<GroupedGemm>())
    if (p.capacity * p.n != 0 && p.experts != 0 && round_up(p.capacity, 64) * round_up(p.n, 64) * p.k <= 8 * kMostProducts)
      cases.push_back(p);
  EXPECT_GT(cases.size(), 50u);
  const Shapes shapes = {{16, 64}, {32, 128}, {64, 64}};
  const int64_t runs =
      check_cases<GroupedGemm>(cases, [&](const GroupedGemmArgs& args, const GroupedGemm::Problem& p, int warp_size, int64_t run) {
        return run_grouped(args, p, shapes[static_cast<size_t>(run % 3)], warp_size, run);
      });
  EXPECT_GT(runs, 150);
}

// Lists that no router would make, but expert parallelism or a fault does: blocks of no expert here, more positions than there are.
TEST(SimtGemm, grouped_tile_takes_any_list) {
  for (const Gather gather : {Gather::token, Gather::position})
    for (const int warp_size : {32, 64}) {
      GroupedGemm::Problem p{.tokens = 40, .experts = 4, .n = 20, .k = 24, .block = 16, .b_format = WeightFormat::strided};
      p.gather = gather;
      p.capacity = 40 * 2 + 4 * 16;
      Maker maker({.guards = true, .strided = true});
      GroupedGemmArgs args = GroupedGemm::make(p, maker);
      auto* experts = static_cast<int32_t*>(args.sorted_expert_ids.data);
      experts[1] = -1;
      experts[3] = 4;
      experts[4] = INT32_MIN;
      auto* valid = static_cast<int32_t*>(args.num_valid.data);
      // Positions that moe_sort did not fill become real ones.
      for (const int32_t count : {valid[0], static_cast<int32_t>(p.capacity), INT32_MAX, 17, 0, -5}) {
        valid[0] = count;
        Oracle oracle;
        maker.poison_outputs();
        if (count >= 0) GroupedGemm::reference(args, &oracle);
        maker.poison_outputs();
        ASSERT_EQ(run_grouped(args, p, {16, 64}, warp_size, count & 7), "");
        if (count >= 0) ASSERT_EQ(harness::judge_all(GroupedGemm::outputs(args), oracle, GroupedGemm::tolerance(p)), "") << count;
        ASSERT_EQ(maker.damage(), "");
      }
    }
}

// Vectors without a batch dimension serve every matrix, and so does a weight of stride 0.
TEST(SimtGemm, what_a_batch_shares) {
  for (const DType a : {DType::i8, DType::bf16}) {
    const Gemm::Problem p{
        .batch = 3, .m = 5, .n = 34, .k = 40, .a = a, .c = DType::bf16, .b_format = WeightFormat::strided, .bias = DType::bf16};
    Maker maker;
    GemmArgs args = Gemm::make(p, maker);
    for (View* v : {&args.bias, &args.a_scale, &args.b_scale})
      if (v->given()) *v = slice(*v, 1);
    args.b.stride[0] = 0;
    Oracle oracle;
    Gemm::reference(args, &oracle);
    for (const int warp_size : {32, 64}) {
      maker.poison_outputs();
      ASSERT_EQ(run_tile(args, p, {32, 64}, warp_size, 1), "");
      ASSERT_EQ(harness::judge_all(Gemm::outputs(args), oracle, Gemm::tolerance(p)), "");
      maker.poison_outputs();
      ASSERT_EQ(run_decode(args, p, warp_size, 1), "");
      ASSERT_EQ(harness::judge_all(Gemm::outputs(args), oracle, Gemm::tolerance(p)), "");
    }
  }
}

// i8 sums beyond 32 bits: the largest codes at a k that needs 64.
TEST(SimtGemm, i8_sums_of_any_length) {
  const int64_t k = 3 * kMaxI8K;
  std::vector<int8_t> a(static_cast<size_t>(k), -128), b(static_cast<size_t>(k), -128);
  a.back() = 127;
  const float one = 1;
  float c = 0;
  const GemmArgs args{.a = View(a.data(), DType::i8, {1, k}),
                      .b = View(b.data(), DType::i8, {1, k}),
                      .c = View(&c, DType::f32, {1, 1}),
                      .bias = {},
                      .a_scale = View(&one, DType::f32, {1}),
                      .b_scale = View(&one, DType::f32, {1})};
  Gemm::Problem p = Gemm::check(args);
  EXPECT_EQ(gemm_tile_form(p, {128, 128}), (GemmTileForm{DType::i8, 64, 64, 1}));
  ASSERT_EQ(run_tile(args, p, {16, 64}, 32, 0), "");
  EXPECT_EQ(c, static_cast<float>(16384.0 * static_cast<double>(k - 1) - 127.0 * 128));
  EXPECT_EQ(gemm_tile_form({.k = kMaxI8K, .a = DType::i8}, {128, 128}).wide, 0);
}

std::vector<float> f32_results(const View& c) {
  const auto* data = static_cast<const float*>(c.data);
  return {data, data + c.size()};
}

// Bits of a row: the same in every tile shape and with any other rows (tile), and with any other rows (decode).
TEST(SimtGemm, bits_depend_on_k_alone) {
  for (const DType a : {DType::f32, DType::bf16, DType::f8e4m3}) {
    Gemm::Problem p{.m = 70, .n = 70, .k = 300, .a = a, .c = DType::f32, .b_format = WeightFormat::strided};
    if (a == DType::f8e4m3) p.a_quant = p.b_quant = Quant::per_token;
    Maker maker;
    const GemmArgs args = Gemm::make(p, maker);
    ASSERT_EQ(run_tile(args, p, {64, 64}, 32, 0), "");
    const std::vector<float> all = f32_results(args.c);
    for (const GemmTileShape shape : Shapes{{16, 64}, {128, 128}})
      for (const int warp_size : {32, 64}) {
        maker.poison_outputs();
        ASSERT_EQ(run_tile(args, p, shape, warp_size, 1), "");
        EXPECT_EQ(f32_results(args.c), all) << str(a);
      }
    const auto part_of = [&](int64_t begin, int64_t end, bool decode) {
      GemmArgs part = args;
      part.a = rows(args.a, begin, end);
      part.c = rows(args.c, begin, end);
      if (part.a_scale.given()) part.a_scale = rows(args.a_scale, begin, end);
      const Gemm::Problem q = Gemm::check(part);
      maker.poison_outputs();
      EXPECT_EQ(decode ? run_decode(part, q, 32, 2) : run_tile(part, q, {16, 64}, 32, 2), "");
      return f32_results(part.c);
    };
    const std::vector<float> tile = part_of(17, 20, false);
    EXPECT_TRUE(std::equal(tile.begin(), tile.end(), all.begin() + 17 * p.n)) << str(a);
    const std::vector<float> eight = part_of(20, 28, true), one = part_of(23, 24, true), three = part_of(22, 25, true);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), eight.begin() + 3 * p.n)) << str(a);
    EXPECT_TRUE(std::equal(three.begin(), three.end(), eight.begin() + 2 * p.n)) << str(a);
  }
}

// B01: rows of NaN or infinity do not reach other rows through the tails.
TEST(SimtGemm, non_finite_rows_stay_alone) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()})
    for (const int64_t k : {1, 15, 17, 33, 129}) {
      const int64_t m = 6, n = 9;
      std::vector<uint16_t> a(static_cast<size_t>(m * k), encode_bf16(bad)), b(static_cast<size_t>(n * k), encode_bf16(1));
      std::fill_n(a.begin() + 2 * k, k, encode_bf16(1));
      std::vector<float> c(static_cast<size_t>(m * n));
      const GemmArgs args{.a = View(a.data(), DType::bf16, {m, k}),
                          .b = View(b.data(), DType::bf16, {n, k}),
                          .c = View(c.data(), DType::f32, {m, n}),
                          .bias = {},
                          .a_scale = {},
                          .b_scale = {}};
      const Gemm::Problem p = Gemm::check(args);
      for (const bool decode : {false, true}) {
        ASSERT_EQ(decode ? run_decode(args, p, 32, 0) : run_tile(args, p, {64, 64}, 64, 0), "");
        for (int64_t i = 0; i < m * n; ++i) {
          const float got = c[static_cast<size_t>(i)];
          if (i / n == 2) ASSERT_EQ(got, static_cast<float>(k));
          else ASSERT_TRUE(std::isnan(bad) ? std::isnan(got) : got == bad) << got;
        }
      }
    }
}

TEST(SimtWords, f8_codes_widen_as_the_codec_says) {
  for (uint32_t code = 0; code < 256; ++code) {
    float x[4];
    simt32::unpack4_f8e4m3(code << 16 | 0x38u, x);
    const float want = decode_f8e4m3(static_cast<uint8_t>(code));
    EXPECT_EQ(x[0], 1);
    EXPECT_EQ(x[1], 0);
    if (std::isnan(want)) EXPECT_TRUE(std::isnan(x[2])) << code;
    else EXPECT_EQ(float_bits(x[2]), float_bits(want)) << code;
  }
}

TEST(SimtWords, dot4_adds_signed_products) {
  EXPECT_EQ(simt32::dot4(0x7f80ff01u, 0x7f80ff01u, 5), 127 * 127 + 128 * 128 + 1 + 1 + 5);
  EXPECT_EQ(simt32::dot4(0x80808080u, 0x7f7f7f7fu, -1), -4 * 128 * 127 - 1);
}

TEST(SimtShape, tiles_suit_the_problem) {
  const SimtMachine machine{.warp_size = 32, .units = 132};
  EXPECT_EQ(gemm_tile_shape({.m = 4096, .n = 4096, .k = 4096}, machine), (GemmTileShape{128, 128}));
  EXPECT_EQ(gemm_tile_shape({.m = 1, .n = 4096, .k = 4096}, machine).tile_m, 16);
  EXPECT_LE(gemm_tile_shape({.m = 64, .n = 2048, .k = 4096}, machine).tile_n, 64);
  const GroupedGemm::Problem decode{.tokens = 4, .capacity = 32 * 32, .experts = 128, .n = 1536, .k = 2048, .block = 32};
  EXPECT_EQ(grouped_gemm_tile_shape(decode, machine).tile_m, 16);
  const SimtEntry entry = gemm_tile_entry({.m = 100, .n = 70, .k = 8, .a = DType::i8, .gate = GateLayout::separated}, {64, 64});
  EXPECT_THAT(entry.defines, testing::ElementsAre("EITRI_A=i8", "EITRI_TILE_M=64", "EITRI_TILE_N=64", "EITRI_WIDE=0"));
  EXPECT_EQ(entry.blocks, 2 * 2);
  EXPECT_EQ(gemm_decode_entry({.m = 3, .n = 70, .k = 8}).blocks, 18);
}

}  // namespace
}  // namespace eitri
