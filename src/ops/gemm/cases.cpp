// What tests and benchmarks run: extents around every tile edge (16, 32, 64), each extent 0, all dtypes, batches, biases,
// activations and gates; public bug reports (B01, B11); the shapes of the published CPU comparison.
#include "base/view.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/library.h"

namespace eitri {

namespace {

using Problem = Gemm::Problem;
constexpr DType kOperands[] = {DType::f32, DType::bf16, DType::f16, DType::i8};
constexpr DType kResults[] = {DType::f32, DType::bf16, DType::f16};
constexpr WeightFormat kOurs[] = {WeightFormat::panel32, WeightFormat::strided};

/// c as models use it: the operand's dtype, bf16 for i8.
DType usual_result(DType a) { return a == DType::i8 || a == DType::f8e4m3 ? DType::bf16 : a; }

void add_extents(std::vector<Case<Problem>>& out, DType a) {
  const auto add = [&](int64_t m, int64_t n, int64_t k, const char* note) {
    // Both weight formats take turns; the result dtype follows the operand.
    const WeightFormat format = kOurs[out.size() % 2];
    out.push_back({{.m = m, .n = n, .k = k, .a = a, .c = usual_result(a), .b_format = format}, note});
  };
  for (const int64_t m : {1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 101}) add(m, 48, 80, "rows around tiles");
  for (const int64_t n : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97}) add(7, n, 64, "columns around tiles");
  for (const int64_t k : {1, 2, 3, 4, 5}) add(19, 33, k, "tiny k");
  for (const int64_t k : {16, 17, 31, 32, 33, 34, 40, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 255})
    add(32, 64, k, "B01: k tails");
  add(1, 1, 1, "one product");
  add(200, 100, 2100, "several blocks of rows and of k");
  add(409, 67, 523, "primes, enough rows to share out");
}

void add_epilogues(std::vector<Case<Problem>>& out, DType a) {
  const DType c = usual_result(a);
  const DType biases[] = {DType::none, DType::f32, c};
  const auto add = [&](ActivationKind kind, GateLayout gate, DType bias, WeightFormat format) {
    out.push_back({{.m = 18, .n = 70, .k = 50, .a = a, .c = c, .b_format = format, .bias = bias, .activation = kind, .gate = gate},
                   "bias, activation, gate"});
  };
  for (const DType bias : biases) {
    if (bias == biases[1] && c == DType::f32) continue;  // c's dtype is f32 already
    for (const auto kind :
         {ActivationKind::none, ActivationKind::relu, ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh})
      if (bias != DType::none || kind != ActivationKind::none) add(kind, GateLayout::none, bias, kOurs[out.size() % 2]);
    for (const auto kind :
         {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::swiglu, ActivationKind::situv2})
      for (const auto gate : {GateLayout::separated, GateLayout::interleaved})
        for (const WeightFormat format : kOurs) add(kind, gate, bias, format);
  }
}

void add_zeros(std::vector<Case<Problem>>& out) {
  for (const DType a : {DType::bf16, DType::i8}) {
    const Problem base{.batch = 2, .m = 5, .n = 34, .k = 21, .a = a, .c = DType::bf16, .bias = DType::f32};
    for (const WeightFormat format : kOurs) {
      Problem p = base;
      p.b_format = format;
      p.batch = 0;
      out.push_back({p, "no batch"});
      p.batch = 1;
      p.m = 0;
      out.push_back({p, "no rows"});
      p.m = base.m;
      p.n = 0;
      out.push_back({p, "no columns"});
      p.n = base.n;
      p.k = 0;
      out.push_back({p, "no k: act(bias)"});
      p.activation = ActivationKind::swiglu;
      p.gate = GateLayout::separated;
      out.push_back({p, "no k, gated"});
    }
  }
}

void add_batches(std::vector<Case<Problem>>& out) {
  for (const DType a : kOperands) {
    for (const WeightFormat format : kOurs) {
      const DType c = usual_result(a);
      out.push_back({{.batch = 16, .m = 32, .n = 64, .k = 33, .a = a, .c = c, .b_format = format}, "B01: batched, k tail"});
      out.push_back({{.batch = 3,
                      .m = 5,
                      .n = 40,
                      .k = 70,
                      .a = a,
                      .c = c,
                      .b_format = format,
                      .bias = c,
                      .activation = ActivationKind::silu,
                      .gate = GateLayout::interleaved},
                     "batched, gated, bias of c's dtype"});
    }
  }
}

/// f8e4m3 with both kinds of scales; b is plain, there is no packed form of it.
void add_f8(std::vector<Case<Problem>>& out) {
  const auto add = [&](Problem p, Quant a_quant, Quant b_quant, const char* note) {
    p.a = DType::f8e4m3, p.b_format = WeightFormat::strided;
    p.a_quant = p.m == 1 ? Quant::per_tensor : a_quant, p.b_quant = p.n == 1 ? Quant::per_tensor : b_quant;
    out.push_back({p, note});
  };
  using enum Quant;
  for (const Quant a : {per_tensor, per_token})
    for (const Quant b : {per_tensor, per_token}) {
      for (const DType c : kResults) add({.m = 33, .n = 65, .k = 97, .c = c, .bias = DType::f32}, a, b, "f8: scales and dtypes");
      add({.batch = 3, .m = 6, .n = 34, .k = 50, .c = DType::bf16}, a, b, "f8: batched");
    }
  for (const int64_t m : {1, 2, 7, 8, 9, 16, 64, 101}) add({.m = m, .n = 48, .k = 80}, per_token, per_token, "f8: rows around tiles");
  for (const int64_t n : {1, 3, 31, 64, 65}) add({.m = 5, .n = n, .k = 64}, per_token, per_token, "f8: columns around tiles");
  for (const int64_t k : {1, 3, 4, 15, 16, 17, 63, 65, 255, 4100}) add({.m = 9, .n = 33, .k = k}, per_token, per_tensor, "f8: k tails");
  for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved})
    for (const auto kind : {ActivationKind::silu, ActivationKind::swiglu})
      add({.m = 18, .n = 70, .k = 50, .bias = DType::bf16, .activation = kind, .gate = gate}, per_token, per_token, "f8: gated");
  add({.m = 0, .n = 34, .k = 21}, per_tensor, per_token, "f8: no rows");
  add({.m = 5, .n = 34, .k = 0, .bias = DType::f32}, per_token, per_tensor, "f8: no k");
}

struct Coding {
  DType b;
  Quant quant;
};
constexpr Coding kCodings[] = {{DType::f8e4m3, Quant::per_tensor}, {DType::f8e4m3, Quant::per_token},   {DType::f8e4m3, Quant::per_1x32},
                               {DType::f8e4m3, Quant::per_1x128},  {DType::f8e4m3, Quant::per_128x128}, {DType::i8, Quant::per_tensor},
                               {DType::i8, Quant::per_token},      {DType::i8, Quant::per_1x32},        {DType::i8, Quant::per_1x128},
                               {DType::i4, Quant::per_tensor},     {DType::i4, Quant::per_token},       {DType::i4, Quant::per_1x32},
                               {DType::i4, Quant::per_1x128},      {DType::f4e2m1, Quant::per_1x32},    {DType::f4e2m1, Quant::per_1x16}};

/// b of fewer bits than a. Spans of 128 k, groups of 16 to 128 of them and blocks of 128 rows all get partial ends.
void add_weight_only(std::vector<Case<Problem>>& out) {
  const auto add = [&](Coding coding, Problem p, const char* note) {
    p.b = coding.b, p.b_quant = p.n == 1 && !is_block(coding.quant) ? Quant::per_tensor : coding.quant;
    p.b_format = kOurs[out.size() % 2];
    out.push_back({p, note});
  };
  for (const Coding coding : kCodings) {
    for (const DType a : kResults) add(coding, {.m = 33, .n = 65, .k = 194, .a = a, .c = a, .bias = DType::f32}, "weight-only: dtypes");
    for (const int64_t m : {1, 7, 16, 17, 101}) add(coding, {.m = m, .n = 150, .k = 320}, "weight-only: rows around tiles");
    for (const int64_t n : {1, 31, 33, 97}) add(coding, {.m = 5, .n = n, .k = 128}, "weight-only: columns around tiles");
    for (const int64_t k : {2, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 1100})
      add(coding, {.m = 9, .n = 40, .k = k}, "weight-only: k tails");
    add(coding, {.batch = 3, .m = 6, .n = 34, .k = 50}, "weight-only: batched");
    for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved})
      add(coding, {.m = 18, .n = 270, .k = 130, .bias = DType::bf16, .activation = ActivationKind::silu, .gate = gate},
          "weight-only: gated");
    add(coding, {.m = 200, .n = 100, .k = 2100}, "weight-only: several blocks of rows and of k");
    add(coding, {.m = 0, .n = 34, .k = 22}, "weight-only: no rows");
    add(coding, {.m = 5, .n = 34, .k = 0, .bias = DType::f32}, "weight-only: no k");
  }
}

/// i4 weights with i8 activations.
void add_i8_i4(std::vector<Case<Problem>>& out) {
  const auto add = [&](Problem p, const char* note) {
    p.a = DType::i8, p.b = DType::i4, p.b_quant = Quant::per_token, p.b_format = kOurs[out.size() % 2];
    out.push_back({p, note});
  };
  for (const DType c : kResults) add({.m = 33, .n = 65, .k = 194, .c = c, .bias = DType::f32}, "i8 x i4: dtypes");
  for (const int64_t m : {1, 2, 7, 12, 13, 16, 17, 33, 101}) add({.m = m, .n = 150, .k = 320}, "i8 x i4: rows around tiles");
  for (const int64_t n : {1, 31, 33, 97}) add({.m = 5, .n = n, .k = 128}, "i8 x i4: columns around tiles");
  for (const int64_t k : {2, 17, 31, 63, 64, 65, 127, 129, 255, 513, 1100}) add({.m = 9, .n = 40, .k = k}, "i8 x i4: k tails");
  add({.batch = 3, .m = 6, .n = 34, .k = 50}, "i8 x i4: batched");
  for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved})
    add({.m = 18, .n = 270, .k = 130, .bias = DType::bf16, .activation = ActivationKind::silu, .gate = gate}, "i8 x i4: gated");
  add({.m = 200, .n = 100, .k = 9000}, "i8 x i4: several blocks of rows and of k");
  add({.m = 5, .n = 34, .k = 0, .bias = DType::f32}, "i8 x i4: no k");
}

/// f8e4m3 x f8e4m3 on rows that decode, packed; and block scales of both operands.
void add_coded_f8(std::vector<Case<Problem>>& out) {
  const auto add = [&](Problem p, Quant a_quant, Quant b_quant, DType b, const char* note) {
    p.a = DType::f8e4m3, p.b = b, p.b_format = kOurs[out.size() % 2];
    p.a_quant = p.m == 1 && !is_block(a_quant) ? Quant::per_tensor : a_quant;
    p.b_quant = p.n == 1 && !is_block(b_quant) ? Quant::per_tensor : b_quant;
    out.push_back({p, note});
  };
  struct Pair {
    Quant a, b;
    DType type = DType::none;
  };
  using enum Quant;
  for (const Pair q : {Pair{per_1x128, per_128x128},
                       {per_1x32, per_1x32},
                       {per_1x32, per_1x32, DType::f4e2m1},
                       {per_token, per_token},
                       {per_tensor, per_tensor}}) {
    for (const DType c : kResults) add({.m = 33, .n = 65, .k = 194, .c = c, .bias = DType::f32}, q.a, q.b, q.type, "coded f8: scales");
    for (const int64_t m : {1, 16, 17, 101}) add({.m = m, .n = 150, .k = 320}, q.a, q.b, q.type, "coded f8: rows around tiles");
    for (const int64_t k : {2, 31, 65, 127, 129, 1100}) add({.m = 9, .n = 140, .k = k}, q.a, q.b, q.type, "coded f8: k tails");
    add({.batch = 3, .m = 6, .n = 34, .k = 50}, q.a, q.b, q.type, "coded f8: batched");
    add({.m = 18, .n = 270, .k = 130, .activation = ActivationKind::swiglu, .gate = GateLayout::separated}, q.a, q.b, q.type,
        "coded f8: gated");
  }
}

void add_library(std::vector<Case<Problem>>& out) {
  if (library::version() == 0) return;
  for (const DType a : {DType::f32, DType::bf16, DType::i8}) {
    Problem p{.m = 9, .n = 70, .k = 50, .a = a, .c = usual_result(a), .b_format = WeightFormat::onednn};
    out.push_back({p, "the library's layout"});
    p.bias = DType::f32;
    p.activation = ActivationKind::swiglu;
    p.gate = GateLayout::separated;
    out.push_back({p, "the library's layout, gated"});
    p.gate = GateLayout::interleaved;
    p.batch = 2;
    p.m = 33;
    out.push_back({p, "the library's layout, gated, batched"});
  }
}

View packed(const View& rows, const View& block_scale, const Problem& p, Maker& maker) {
  const PackArgs args{.weights = rows,
                      .gate = p.gate,
                      .format = p.b_format == WeightFormat::onednn ? PackFormat::onednn : PackFormat::panel32,
                      .m_hint = p.m > 0 ? p.m : 1,
                      .quant = is_block(p.b_quant) ? p.b_quant : Quant::none,
                      .scale = block_scale};
  return pack_weights(args, maker.raw("b", packed_bytes(args)));
}

}  // namespace

Cases<Problem> Gemm::cases() {
  Cases<Problem> all;
  auto& test = all.test;
  for (const DType a : kOperands)
    for (const DType c : kResults)
      for (const WeightFormat format : kOurs) test.push_back({{.m = 33, .n = 65, .k = 97, .a = a, .c = c, .b_format = format}, "dtypes"});
  for (const DType a : kOperands) add_extents(test, a);
  for (const DType a : kOperands) add_epilogues(test, a);
  add_zeros(test);
  add_batches(test);
  add_f8(test);
  add_weight_only(test);
  add_coded_f8(test);
  add_i8_i4(test);
  for (const DType a : {DType::bf16, DType::i8})
    for (const int64_t m : {1, 32}) test.push_back({{.m = m, .n = 512, .k = 7168, .a = a, .c = DType::bf16}, "B11: long k, few columns"});
  add_library(test);

  struct Shape {
    int64_t n, k;
  };
  for (const DType a : {DType::bf16, DType::i8})
    for (const Shape s : {Shape{4096, 4096}, {14336, 4096}, {4096, 14336}, {2048, 7168}, {7168, 2048}, {768, 2048}, {2048, 768}})
      for (const int64_t m : {1, 4, 16, 64, 256, 1024})
        all.bench.push_back({{.m = m, .n = s.n, .k = s.k, .a = a, .c = DType::bf16}, "model shapes"});
  return all;
}

Gemm::Args Gemm::make(const Problem& p, Maker& maker) {
  const bool batched = p.batch != 1;
  // Same tensors with and without a batch dimension.
  const auto tensor = [&](auto&& place, const char* tensor_name, DType dtype, int64_t rows, int64_t columns, auto... fill) {
    return batched ? place(tensor_name, dtype, {p.batch, rows, columns}, fill...) : place(tensor_name, dtype, {rows, columns}, fill...);
  };
  using List = std::initializer_list<int64_t>;
  const auto input = [&](const char* n, DType d, List shape, Fill f) { return maker.input(n, d, shape, f); };
  const auto output = [&](const char* n, DType d, List shape) { return maker.output(n, d, shape); };
  const auto vector = [&](const char* n, DType d, int64_t extent, Fill f) {
    return batched ? maker.input(n, d, {p.batch, extent}, f) : maker.input(n, d, {extent}, f);
  };

  // Rows of packed dtypes are whole bytes; the last element of an odd k belongs to nobody.
  const auto rows_of = [&](auto&& place, const char* tensor_name, DType dtype, int64_t rows, Fill fill) {
    View view = tensor(place, tensor_name, dtype, rows, is_packed(dtype) ? p.k + p.k % 2 : p.k, fill);
    view.shape[view.rank - 1] = p.k;
    return view;
  };
  const auto block_scales = [&](auto&& place, const char* tensor_name, DType dtype, Quant quant, int64_t rows) {
    return tensor(place, tensor_name, block_scale_dtype(dtype, quant), blocks_of(rows, block_rows(quant)), blocks_of(p.k, block_k(quant)),
                  Fill::scale);
  };

  Args args;
  args.a = tensor(input, "a", p.a, p.m, p.k, p.scaled() ? Fill::code : Fill::normal);
  const Fill weight_fill = p.b_scaled() ? Fill::code : Fill::weight;
  const DType weight = p.weight();
  std::string key = str("b ", p.batch, " x ", p.n, " x ", p.k, " ", weight, p.b_scaled() ? " codes " : " ", static_cast<int>(p.b_quant),
                        " ", static_cast<int>(p.b_format), " ", static_cast<int>(p.gate));
  if (p.b_format == WeightFormat::onednn) key += str(" for ", p.m);
  if (p.b_format == WeightFormat::strided) {
    args.b =
        maker.shared(key + (maker.options().strided ? " with gaps" : ""), [&] { return rows_of(input, "b", weight, p.n, weight_fill); });
    if (is_block(p.b_quant)) args.b_scale = block_scales(input, "b_scale", weight, p.b_quant, p.n);
  } else {
    args.b = maker.shared(key, [&] {
      // The plain weights live only here.
      Maker plain({.seed = maker.options().seed});
      const auto in_plain = [&](const char* n, DType d, List shape, Fill f) { return plain.dense(n, d, shape, f); };
      View scale;
      if (is_block(p.b_quant)) scale = block_scales(in_plain, "b_block_scale", weight, p.b_quant, p.n);
      return packed(rows_of(in_plain, "b_rows", weight, p.n, weight_fill), scale, p, maker);
    });
  }
  args.c = tensor(output, "c", p.c, p.m, p.n_out());
  if (p.bias != DType::none) args.bias = vector("bias", p.bias, p.n, Fill::normal);
  if (is_block(p.a_quant)) args.a_scale = block_scales(input, "a_scale", p.a, p.a_quant, p.m);
  else if (p.scaled()) args.a_scale = vector("a_scale", DType::f32, p.a_quant == Quant::per_tensor ? 1 : p.m, Fill::scale);
  if (p.b_scaled() && !is_block(p.b_quant))
    args.b_scale = vector("b_scale", DType::f32, p.b_quant == Quant::per_tensor ? 1 : p.n, Fill::scale);
  if (p.b_quant == Quant::per_1x16) args.b_global_scale = vector("b_global_scale", DType::f32, 1, Fill::scale);
  // Rows and tensors may leave it to the extents.
  if (is_block(p.a_quant)) args.a_quant = p.a_quant;
  if (is_block(p.b_quant)) args.b_quant = p.b_quant;
  args.activation.kind = p.activation;
  if (p.activation == ActivationKind::swiglu) args.activation.limit = 7;  // gpt-oss
  args.gate = p.gate;
  return args;
}

}  // namespace eitri
