// Pages of large buffers that the next ones take.
#pragma once

#include <cstddef>

namespace eitri {

/// From now on large buffers that end leave their pages to the next ones, up to so many bytes in all; they are zeroed when they are taken.
/// For a process that makes and drops large buffers again and again: a virtual machine may have to ask its host for each new page, at a
/// GB a second. 0, which is how it begins: pages go back to the system, the kept ones as well.
void keep_pages(size_t most_bytes);

}  // namespace eitri
