// CRC-32 as zlib computes it (polynomial 0xEDB88320), eight bytes at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memplan {

// Continues `crc` (0 to start) over `bytes` bytes at `data`.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace memplan
