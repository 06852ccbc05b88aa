#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace backstay::tools {

// A file that is either there whole or not at all: written beside its place under another name,
// flushed to the disk, then renamed.
//
// Failure: kNoSpace when the disk is full; kInvalidArgument for a place that cannot be written.
//          Whatever was not published is removed by the destructor.
class OutputFile {
 public:
  // kInvalidArgument when `path` exists, unless `replace`. Reserves `size_bytes` on the disk.
  static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, uint64_t size_bytes,
                                                    bool replace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Write(uint64_t offset_bytes, std::span<const std::byte> bytes);
  // Flushes and renames. Once.
  Status Publish();

 private:
  OutputFile(std::string path, std::string part_path, bool replace, UniqueFd fd);
  int Rename();

  const std::string path_;
  const std::string part_path_;
  const bool replace_;
  UniqueFd fd_;
  bool published_ = false;
};

}  // namespace backstay::tools
