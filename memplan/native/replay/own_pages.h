// Memory for books that are kept while a program runs.
//
// They come and go with the program's blocks. In the C library's heap each entry would
// lie between two of those, and keep the heap from shrinking when they are freed.
#pragma once

#include <memory_resource>

namespace memplan {

// Whole pages, from the system and back to it; for a pool to take its chunks from. It
// lives for ever.
std::pmr::memory_resource* own_pages();

}  // namespace memplan
