#include "jit/source.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace eitri::jit {

namespace {

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.size() > 200) return false;
  for (char c : name) {
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' ||
                    c == '/' || c == '+';
    if (!ok) return false;
  }
  const std::string framed = str("/", name, "/");
  return framed.find("/../") == std::string::npos && framed.find("/./") == std::string::npos && framed.find("//") == std::string::npos;
}

/// The text with comments and line continuations gone and the insides of literals kept, line by line as far as directives
/// are concerned. Raw strings are passed over whole: what looks like a directive in one is none.
std::string without_comments(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto starts = [&](size_t i, std::string_view what) { return text.substr(i, what.size()) == what; };
  for (size_t i = 0; i < text.size();) {
    if (starts(i, "\\\n")) {
      i += 2;
    } else if (starts(i, "//")) {
      while (i < text.size() && text[i] != '\n') i += text[i] == '\\' && i + 1 < text.size() ? 2 : 1;
    } else if (starts(i, "/*")) {
      const size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 2;
      out += ' ';
    } else if (starts(i, "R\"")) {
      const size_t open = text.find('(', i);
      const bool sane = open != std::string_view::npos && open - i <= 18;
      const std::string close = sane ? str(")", text.substr(i + 2, open - i - 2), "\"") : std::string();
      const size_t end = sane ? text.find(close, open) : std::string_view::npos;
      if (end == std::string_view::npos) {  // not a raw string after all (an identifier that ends in R)
        out += text[i++];
      } else {
        out += "\"\"";
        i = end + close.size();
      }
    } else if (text[i] == '"' || text[i] == '\'') {
      const char quote = text[i];
      do {                        // a literal ends on its line at the latest; 1'000 looks like one and ends there too
        if (starts(i, "\\\n")) {  // goes on in the next line
          i += 2;
          continue;
        }
        if (text[i] == '\\' && i + 1 < text.size()) out += text[i++];
        out += text[i++];
      } while (i < text.size() && text[i] != quote && text[i] != '\n');
      if (i < text.size() && text[i] == quote) out += text[i++];
    } else {
      out += text[i++];
    }
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// Calls f with what follows each #include.
template <class F> void for_each_include(std::string_view text, F&& f) {
  const std::string clean = without_comments(text);
  for (std::string_view rest = clean; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!line.starts_with('#')) continue;
    line = trimmed(line.substr(1));
    if (!line.starts_with("include")) continue;
    line.remove_prefix(std::string_view("include").size());
    if (line.starts_with("_next")) line.remove_prefix(5);
    if (!line.empty() && (line.front() == ' ' || line.front() == '\t' || line.front() == '"' || line.front() == '<')) f(trimmed(line));
  }
}

std::string folder_of(std::string_view name) {
  const size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? std::string() : std::string(name.substr(0, slash + 1));
}

struct Walk {
  const HeaderSet& headers;
  std::map<std::string, std::string> seen = {};
  std::set<std::string> system = {};

  void visit(const std::string& includer, const std::string& text) {
    for_each_include(text, [&](std::string_view what) { include(includer, what); });
  }

  void include(const std::string& includer, std::string_view what) {
    const char close = what.front() == '<' ? '>' : '"';
    const size_t end = what.find(close, 1);
    require((what.front() == '<' || what.front() == '"') && end != std::string_view::npos, "jit: ", includer, " has #include ", what,
            "; expected \"name\" or <name> (a computed include cannot be followed)");
    const std::string name(what.substr(1, end - 1));
    const std::string* const text = headers.find(name);
    if (text == nullptr) {
      require(close == '>', "jit: ", includer, " includes \"", name, "\"; expected one of ", headers.names());
      require(is_plain_name(name), "jit: ", includer, " includes <", name, ">; expected a plain name of a header");
      system.insert(name);
      return;
    }
    const std::string beside = folder_of(includer) + name;
    require(close == '>' || beside == name || headers.find(beside) == nullptr, "jit: ", includer, " includes \"", name,
            "\", which may be that header or ", beside, "; expected the full name of one of them");
    if (seen.emplace(name, *text).second) visit(name, *text);
  }
};

constexpr std::string_view kCstdint = R"(#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
using ::intptr_t; using ::uintptr_t;
}
)";

constexpr std::string_view kCstddef = R"(#pragma once
typedef unsigned long size_t;
typedef long ptrdiff_t;
namespace std {
using ::size_t; using ::ptrdiff_t;
using nullptr_t = decltype(nullptr);
enum class byte : unsigned char {};
}
)";

}  // namespace

void HeaderSet::add(std::string name, std::string_view text) {
  require(is_plain_name(name), "jit: the name of a header is \"", name,
          "\"; expected a relative path of letters, digits and _-+. without \"..\"");
  const std::string* const known = find(name);
  require(known == nullptr || *known == text, "jit: header ", name, " is given twice with different texts; expected one");
  if (known == nullptr) texts_.emplace(std::move(name), std::make_shared<const std::string>(text));
}

void HeaderSet::add(const HeaderSet& other) {
  for (const auto& [name, text] : other.texts_) {
    const auto [at, is_first] = texts_.try_emplace(name, text);
    require(is_first || *at->second == *text, "jit: header ", name, " is given twice with different texts; expected one");
  }
}

const std::string* HeaderSet::find(std::string_view name) const {
  const auto at = texts_.find(name);
  return at == texts_.end() ? nullptr : at->second.get();
}

std::string HeaderSet::names() const {
  std::string out;
  for (const auto& [name, text] : texts_) out += str(out.empty() ? "" : ", ", name);
  return out.empty() ? "none (no header is given)" : out;
}

const HeaderSet& freestanding_headers() {
  static const HeaderSet headers = [] {
    HeaderSet out;
    out.add("cstdint", kCstdint);
    out.add("cstddef", kCstddef);
    return out;
  }();
  return headers;
}

Closure include_closure(const SourceBundle& source) {
  require(is_plain_name(source.name) && source.name.find('/') == std::string::npos, "jit: the name of a source is \"", source.name,
          "\"; expected a file name such as rmsnorm.cu");
  require(source.headers.find(source.name) == nullptr, "jit: source ", source.name, " has the name of a header; expected another");
  Walk walk{source.headers};
  walk.visit(source.name, source.text);
  return {{walk.seen.begin(), walk.seen.end()}, {walk.system.begin(), walk.system.end()}};
}

}  // namespace eitri::jit
