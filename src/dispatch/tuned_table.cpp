// Reading of one tuned file. Whatever it holds, the worst that happens is a skipped line with a reason.
#include "dispatch/tuned_table.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/hash.h"

namespace eitri {
namespace {

// Columns after the problem fields.
constexpr const char* kTail[] = {"rank", "kernel", "config", "us", "spread_us", "baseline_us", "error", "revision", "toolchain", "date"};
constexpr size_t kTailColumns = std::size(kTail);
constexpr size_t kMostProblems = 1000;

void split_commas(std::string_view line, std::vector<std::string_view>& cells) {
  cells.clear();
  const char *at = line.data(), *const end = at + line.size();
  while (true) {
    const auto* comma = static_cast<const char*>(std::memchr(at, ',', static_cast<size_t>(end - at)));
    cells.emplace_back(at, static_cast<size_t>((comma == nullptr ? end : comma) - at));
    if (comma == nullptr) return;
    at = comma + 1;
  }
}

template <class T> bool number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

/// One multiplication a word, mixed once at the end, as problems are hashed on the path of every call.
uint64_t key_hash(std::string_view values, int units) {
  uint64_t hash = 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(units);
  const char* at = values.data();
  const auto add = [&](uint64_t word) { hash = ((hash << 7 | hash >> 57) ^ word) * 0xd6e8feb86659fd93ull; };
  size_t left = values.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    add(word);
  }
  uint64_t word = values.size();
  for (; left > 0; --left, ++at) word = word << 8 | static_cast<unsigned char>(*at);
  add(word);
  return mix(hash);
}

/// Times and errors: finite, not negative; an empty cell is 0.
bool measure(std::string_view text, double& out) {
  out = 0;
  return text.empty() || (number(text, out) && std::isfinite(out) && out >= 0);
}

/// As key_of writes it: no sign but of a negative number, no leading zeros.
bool is_integer(std::string_view cell) {
  int64_t value = 0;
  if (!number(cell, value)) return false;
  const std::string_view digits = cell.substr(cell.starts_with('-') ? 1 : 0);
  return digits.size() == 1 || digits[0] != '0';
}

std::string short_of(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 5).ptr;
  return {text, end};
}

/// Cells are written by us or copied from what we read: what would break a line is replaced.
std::string cell_of(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c == ',' || c == '\n' || c == '\r') c = ' ';
  return out;
}

}  // namespace

std::string values_of(std::string_view key) {
  std::string out;
  bool value = false;
  for (const char c : key) {
    if (c == ',') value = false;
    if (value || c == ',') out += c;
    if (c == '=') value = true;
  }
  return out;
}

size_t bucketed_field(const std::vector<TunedField>& fields) {
  return static_cast<size_t>(std::ranges::find(fields, Match::bucketed, &TunedField::match) - fields.begin());
}

std::string tuned_header(const std::vector<TunedField>& fields) {
  std::string out = "arch,units";
  for (const TunedField& field : fields) out += str(",", field.name);
  for (const char* name : kTail) out += str(",", name);
  return out;
}

std::string tuned_line(const TunedRow& row, std::string_view arch) {
  return str(arch, ",", row.units, ",", values_of(row.key), ",", row.rank, ",", cell_of(row.kernel), ",", cell_of(row.config), ",",
             short_of(row.us), ",", short_of(row.spread_us), ",", short_of(row.baseline_us), ",", short_of(row.error), ",",
             cell_of(row.revision), ",", cell_of(row.toolchain), ",", cell_of(row.date));
}

TunedTable::TunedTable(std::string text, std::string file, std::string_view arch, std::vector<TunedField> fields)
    : text_(std::move(text)), file_(std::move(file)), fields_(std::move(fields)) {
  // A row has a comma behind each column but the last: a file of empty lines makes no large table.
  const size_t columns = fields_.size() + 2 + std::size(kTail);
  const size_t lines = std::min(static_cast<size_t>(std::count(text_.begin(), text_.end(), '\n')), text_.size() / columns) + 2;
  entries_.reserve(lines);
  entries_.emplace_back();
  slots_.resize(std::bit_ceil(2 * lines));
  known_good_.resize(fields_.size());
  read(arch);
  if (more_problems_ > 0) problems_.push_back({file_, str("and ", more_problems_, " more lines")});
}

template <class... Parts> void TunedTable::problem(std::string_view line, const Parts&... parts) {
  if (!line.empty()) rejected_.push_back(line);
  if (problems_.size() >= kMostProblems) ++more_problems_;
  else problems_.push_back({str(file_, ":", line_), str(parts...)});
}

void TunedTable::read(std::string_view arch) {
  std::string_view text = text_;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::vector<std::string_view> cells;
  while (!text.empty()) {
    ++line_;
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (line.starts_with('#')) {
      comments_.push_back(line);
      continue;
    }
    if (readable_) {
      read_row(line, arch, cells);
      continue;
    }
    if (const std::string wanted = tuned_header(fields_); line != wanted) {
      problem({}, "the header differs from this version's columns; expected ", wanted);
      return;  // cells would be read as other columns
    }
    readable_ = true;
  }
}

void TunedTable::read_row(std::string_view line, std::string_view arch, std::vector<std::string_view>& cells) {
  const size_t n_fields = fields_.size(), tail = 2 + n_fields, n_columns = tail + kTailColumns;
  split_commas(line, cells);
  if (cells.size() != n_columns) return problem(line, "the line has ", cells.size(), " cells; expected ", n_columns);
  if (cells[0] != arch) return problem(line, "arch is ", cells[0], "; this machine is ", arch);
  for (size_t i = 0; i < n_fields; ++i) {
    const std::string_view cell = cells[2 + i];
    if (cell == known_good_[i] && !cell.empty()) continue;
    if (fields_[i].valid != nullptr ? !fields_[i].valid(cell) : !is_integer(cell))
      return problem(line, fields_[i].name, " is \"", cell, "\"; expected ", fields_[i].valid == nullptr ? "an integer" : "a value of it");
    known_good_[i] = cell;
  }
  Entry entry;
  double spread = 0, baseline = 0, error = 0;
  if (!number(cells[1], entry.units) || !number(cells[tail], entry.rank) || !number(cells[tail + 3], entry.us))
    return problem(line, "units, rank or us is no number");
  if (!(entry.us > 0) || !std::isfinite(entry.us) || entry.rank < 1)
    return problem(line, "us is ", cells[tail + 3], " and rank ", entry.rank, "; expected us > 0 and rank >= 1");
  if (!measure(cells[tail + 4], spread) || !measure(cells[tail + 5], baseline) || !measure(cells[tail + 6], error))
    return problem(line, "spread_us, baseline_us or error is no finite number that is at least 0");
  if (cells[tail + 1].empty()) return problem(line, "kernel is empty; expected a name");
  const char* const values = cells[2].data();
  const char* const rest = cells[tail].data();
  entry.values = {values, static_cast<size_t>(rest - 1 - values)};
  entry.tail = {rest, static_cast<size_t>(line.data() + line.size() - rest)};
  entry.line = line_;
  insert(entry, line);
}

size_t TunedTable::slot_of(uint64_t hash, std::string_view values, int units) const {
  const size_t mask = slots_.size() - 1;
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t slot = hash & mask;
  while (slots_[slot].entry != 0) {
    if (slots_[slot].tag == tag) {
      const Entry& entry = entries_[slots_[slot].entry];
      if (entry.units == units && entry.values == values) break;
    }
    slot = (slot + 1) & mask;
  }
  return slot;
}

void TunedTable::insert(Entry entry, std::string_view line) {
  const uint64_t hash = key_hash(entry.values, entry.units);
  Slot& slot = slots_[slot_of(hash, entry.values, entry.units)];
  slot.tag = static_cast<uint32_t>(hash >> 32);
  uint32_t* link = &slot.entry;
  while (*link != 0 && entries_[*link].rank < entry.rank) link = &entries_[*link].next;
  if (*link != 0 && entries_[*link].rank == entry.rank)
    return problem(line, "a row for this problem and rank came before; the first one counts");
  entry.next = *link;
  *link = static_cast<uint32_t>(entries_.size());
  entries_.push_back(entry);
}

const TunedTable::Entry* TunedTable::find(std::string_view values, int units) const {
  const uint64_t hash = key_hash(values, units);
  const uint32_t index = slots_[slot_of(hash, values, units)].entry;
  return index == 0 ? nullptr : &entries_[index];
}

TunedRow TunedTable::row(const Entry& entry) const {
  std::vector<std::string_view> cells;
  split_commas(entry.values, cells);
  TunedRow out;
  for (size_t i = 0; i < cells.size(); ++i) out.key += str(i == 0 ? "" : ",", fields_[i].name, "=", cells[i]);
  split_commas(entry.tail, cells);
  out.units = entry.units;
  out.rank = entry.rank;
  out.kernel = cells[1];
  out.config = cells[2];
  out.us = entry.us;
  measure(cells[4], out.spread_us);
  measure(cells[5], out.baseline_us);
  measure(cells[6], out.error);
  out.revision = cells[7];
  out.toolchain = cells[8];
  out.date = cells[9];
  out.origin = str(file_, ":", entry.line);
  return out;
}

std::vector<TunedTable::Point> TunedTable::ladder(std::string_view values, int units) const {
  const size_t bucketed = bucketed_field(fields_);
  if (bucketed == fields_.size()) return {};
  std::vector<std::string_view> cells, wanted;
  split_commas(values, wanted);
  if (wanted.size() != fields_.size()) return {};
  const auto hash_without_bucketed = [&](const std::vector<std::string_view>& row, int row_units) {
    uint64_t hash = static_cast<uint64_t>(row_units);
    for (size_t i = 0; i < row.size(); ++i)
      if (fields_[i].match == Match::exact) hash = hash_bytes(row[i], hash);
    return hash;
  };
  if (!curves_made_) {
    for (uint32_t i = 1; i < entries_.size(); ++i) {
      if (&entries_[i] != find(entries_[i].values, entries_[i].units)) continue;  // the best rank stands for the problem
      split_commas(entries_[i].values, cells);
      int64_t at = 0;
      if (number(cells[bucketed], at)) curves_.push_back({hash_without_bucketed(cells, entries_[i].units), at, i});
    }
    std::ranges::sort(curves_, [](const Curve& a, const Curve& b) {
      return a.hash != b.hash ? a.hash < b.hash : a.at != b.at ? a.at < b.at : a.entry < b.entry;
    });
    curves_made_ = true;
  }
  std::vector<Point> out;
  const uint64_t hash = hash_without_bucketed(wanted, units);
  for (auto it = std::ranges::lower_bound(curves_, hash, {}, &Curve::hash); it != curves_.end() && it->hash == hash; ++it) {
    const Entry& entry = entries_[it->entry];
    split_commas(entry.values, cells);
    bool same = entry.units == units;
    for (size_t i = 0; i < cells.size(); ++i) same = same && (fields_[i].match != Match::exact || cells[i] == wanted[i]);
    if (same && (out.empty() || out.back().at != it->at)) out.push_back({it->at, &entry});
  }
  return out;
}

}  // namespace eitri
