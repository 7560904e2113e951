// Runs a fuzz target without a fuzzer: every file of the given folders (or single files), then `--mutations N` changed
// copies of them (default 2000) from a fixed random sequence, so that every build and every sanitizer replays the same inputs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// A heap copy of exactly the input's size: AddressSanitizer then sees a read of one byte too many.
void run(const Bytes& input) {
  Bytes exact(input.begin(), input.end());
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  auto below = [&](size_t n) { return n ? static_cast<size_t>(random() % n) : 0; };
  const uint64_t edges[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0x80000000, 0x7fffffffffffffff, ~uint64_t{0}, uint64_t{1} << 62};
  for (size_t step = 1 + below(4); step > 0; --step) {
    const size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:  // flip a bit
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(bytes[at] ^ (1u << below(8)));
        break;
      case 1:  // any byte
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random());
        break;
      case 2:  // cut the end off
        bytes.resize(at);
        break;
      case 3: {  // a number at the edge of its range, 1 to 8 bytes
        const uint64_t value = edges[below(std::size(edges))];
        if (!bytes.empty()) std::memcpy(&bytes[at], &value, std::min(bytes.size() - at, size_t{1} << below(4)));
        break;
      }
      case 4: {  // a piece of another input
        if (corpus.empty()) break;
        const Bytes& other = corpus[below(corpus.size())];
        const size_t from = below(other.size());
        const size_t n = below(std::min(other.size() - from, size_t{64}) + 1);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + n));
        break;
      }
      case 5:  // a character that texts care about
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>("\n\r,;=\"{}[]:-+.0 9\\\0e"[below(20)]);
        break;
      default:  // remove a piece
        if (!bytes.empty())
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                      bytes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), at + 1 + below(16))));
        break;
    }
  }
  return bytes;
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "replay: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  long mutations = 2000;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) mutations = std::strtol(argv[++i], nullptr, 10);
    else if (std::filesystem::is_directory(argv[i]))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
    else paths.push_back(argv[i]);
  }
  std::sort(paths.begin(), paths.end());  // the order of a folder differs between file systems

  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    corpus.push_back(read_file(path));
    run(corpus.back());
  }
  run({});
  std::mt19937_64 random(20240229);
  for (long i = 0; i < mutations; ++i)
    run(mutate(corpus.empty() ? Bytes(16) : corpus[static_cast<size_t>(random() % corpus.size())], corpus, random));
  std::printf("replayed %zu files and %ld mutations\n", corpus.size(), mutations);
  return 0;
}
