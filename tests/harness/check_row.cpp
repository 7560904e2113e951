#include "harness/check_row.h"

namespace eitri::harness {

namespace {

const std::byte* first_byte(const View& view) { return static_cast<const std::byte*>(view.data); }

/// Calls f(linear index of its first element, first byte offset, bytes) for every row of the view, until f returns false.
template <class F> void for_each_row(const View& view, F&& f) {
  const int64_t length = view.rank == 0 ? 1 : view.shape[view.rank - 1];
  const int64_t rows = length == 0 ? 0 : view.size() / length;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t offset = 0, rest = r;
    for (int d = view.rank - 2; d >= 0; --d) {
      offset += rest % view.shape[d] * view.stride[d];
      rest /= view.shape[d];
    }
    if (!f(r * length, bytes_for(view.dtype, offset), bytes_for(view.dtype, length))) return;
  }
}

std::string describe(const Output& output, int64_t index, const std::byte* was, const std::byte* is) {
  return str(output.name, " element ", index, " was ", load_at(was, output.view.dtype, 0), " and is ", load_at(is, output.view.dtype, 0));
}

/// First difference of two rows of `n` elements; element by element only when the rows differ.
int64_t first_difference(const std::byte* a, const std::byte* b, DType dtype, int64_t begin, int64_t row_bytes, const Expected* expected) {
  if (std::memcmp(a, b, static_cast<size_t>(row_bytes)) == 0) return -1;
  const int64_t step = std::max<int64_t>(1, bits(dtype) / 8), elements_per_step = is_packed(dtype) ? 2 : 1;
  for (int64_t i = 0; i * step < row_bytes; ++i) {
    const int64_t element = i * elements_per_step;
    const bool open = expected != nullptr && !expected->any.empty() && expected->any[static_cast<size_t>(begin + element)];
    if (!open && std::memcmp(a + i * step, b + i * step, static_cast<size_t>(step)) != 0) return element;
  }
  return -1;
}

}  // namespace

Snapshot::Snapshot(std::vector<Output> outputs) : outputs_(std::move(outputs)) {
  for (const Output& o : outputs_) bytes_.emplace_back(first_byte(o.view), first_byte(o.view) + span_bytes(o.view));
}

std::string Snapshot::difference(const std::vector<Output>& outputs, const Oracle& oracle) const {
  std::string found;
  for (size_t o = 0; o < outputs.size() && found.empty(); ++o) {
    const View& view = outputs[o].view;
    const std::byte *was = bytes_[o].data(), *is = first_byte(view);
    for_each_row(view, [&](int64_t begin, int64_t offset, int64_t bytes) {
      const int64_t at = first_difference(was + offset, is + offset, view.dtype, begin, bytes, &oracle[o]);
      if (at < 0) return true;
      const int64_t byte = offset + bytes_for(view.dtype, at);
      found = describe(outputs[o], begin + at, was + byte, is + byte);
      return false;
    });
  }
  return found;
}

std::string Snapshot::difference_in_part(const std::vector<Output>& part) const {
  std::string found;
  for (size_t o = 0; o < part.size() && found.empty(); ++o) {
    const View& view = part[o].view;
    const int64_t shift = first_byte(view) - first_byte(outputs_[o].view);
    for_each_row(view, [&](int64_t begin, int64_t offset, int64_t bytes) {
      if (shift < 0 || shift + offset + bytes > static_cast<int64_t>(bytes_[o].size())) {
        found = str(part[o].name, " of the part lies outside of the whole");
        return false;
      }
      const std::byte *was = bytes_[o].data() + shift + offset, *is = first_byte(view) + offset;
      const int64_t at = first_difference(was, is, view.dtype, begin, bytes, nullptr);
      if (at < 0) return true;
      const int64_t byte = bytes_for(view.dtype, at);
      found = describe(part[o], begin + at, was + byte, is + byte);
      return false;
    });
  }
  return found;
}

std::string judge_all(const std::vector<Output>& outputs, const Oracle& oracle, const std::vector<Tolerance>& tolerance) {
  if (oracle.size() != outputs.size() || tolerance.size() != outputs.size())
    return str("the op has ", outputs.size(), " outputs, ", oracle.size(), " oracles and ", tolerance.size(), " tolerances");
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Verdict v = judge(outputs[i].view, oracle[i], tolerance[i], outputs[i].name);
    if (!v.ok) return str(v.first, " (", v.wrong, " wrong elements, worst error ratio ", v.max_error_ratio, ")");
  }
  return {};
}

int repeats_for(double first_us, Family family) {
  constexpr double kBudgetUs = 8e3;
  if (family == Family::reference) return 2;
  return static_cast<int>(std::clamp(kBudgetUs / std::max(first_us, 1.0), 2.0, 200.0));
}

}  // namespace eitri::harness
