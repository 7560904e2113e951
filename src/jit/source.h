// Sources as text: what is compiled, the headers of ours that it may include, and what it really includes. A compile needs
// no include path, and a key is made of text alone.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eitri::jit {

/// Headers by the name that #include spells: "device/simt.h". A name without a folder may also stand for a system header
/// that a compiler lacks, and is then found by <name> as well. Copies share the texts.
class HeaderSet {
 public:
  /// Refuses names that leave the folder ("..", absolute) and a second text for a name.
  void add(std::string name, std::string_view text);
  void add(const HeaderSet& other);
  const std::string* find(std::string_view name) const;
  bool empty() const { return texts_.empty(); }
  /// "a.h, b.h, …": for messages.
  std::string names() const;

 private:
  std::map<std::string, std::shared_ptr<const std::string>, std::less<>> texts_;
};

/// <cstdint> and <cstddef> for compilers that come without a standard library.
const HeaderSet& freestanding_headers();

struct SourceBundle {
  std::string name = {};  // of the main text in messages of the compiler: "rmsnorm.cu"
  std::string text = {};
  HeaderSet headers = {};
};

/// What the main text includes, directly or not, in any branch of #if.
struct Closure {
  std::vector<std::pair<std::string, std::string>> headers;  // ours: name and text, sorted by name
  std::vector<std::string> system;                           // <...>, sorted: they belong to the compiler's version
};

/// Throws Error{invalid_argument} that names the file and the include for: a "..." that is not in the set, a computed
/// include, or a name that means one header to us and might mean another to a compiler that looks beside the includer.
Closure include_closure(const SourceBundle& source);

}  // namespace eitri::jit
