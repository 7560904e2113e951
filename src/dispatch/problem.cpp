// Text side of problems: "name=value" lists and their errors.
#include "dispatch/problem.h"

namespace eitri::detail {

bool parse_bool(std::string_view text, bool& out) {
  if (text != "0" && text != "1") return false;
  out = text == "1";
  return true;
}

std::vector<std::pair<std::string_view, std::string_view>> split_pairs(std::string_view text, char separator) {
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    const std::string_view item = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) fail(Code::invalid_argument, str("problem: item is \"", item, "\"; expected name=value"));
    pairs.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return pairs;
}

void bad_value(std::string_view field, std::string_view got, std::string_view wanted) {
  fail(Code::invalid_argument, str(field, " is \"", got, "\"; expected ", wanted));
}

void unknown_field(std::string_view op, std::string_view got, const std::vector<std::string>& known) {
  std::string list;
  for (const auto& name : known) list += str(list.empty() ? "" : ", ", name);
  fail(Code::invalid_argument, str(op, ": field is \"", got, "\"; expected one of ", list));
}

}  // namespace eitri::detail
