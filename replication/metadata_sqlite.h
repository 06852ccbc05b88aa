#pragma once

#include <memory>
#include <string>

#include "base/executor.h"
#include "base/random.h"
#include "replication/metadata_embedded.h"

namespace backstay::replication {

struct EmbeddedMetadataOptions {
  std::string directory;  // Must exist. Holds kMetadataFileName and its write-ahead log.
  bool create = true;     // False: kNotFound when there is no store yet.
  // The most that the file may grow to, apart from its log. Keys, values and SQLite's own pages
  // have ample room in it.
  uint64_t file_bytes_max = 4 * kMetadataStoreBytesMax;
};

inline constexpr char kMetadataFileName[] = "metadata.db";  // docs/formats/metadata.md

// Opens, or makes with a new random id, the metadata store of a directory: SQLite is the journal
// (write-ahead log, synced at every commit), written by a thread of its own. Blocks for as long as
// the check of the file takes.
//
// kUnavailable: another process has it open, or the disk cannot be read. kCorrupt: the file is
// damaged; restore the directory from a copy and adopt it, or make a new store. kInvalidArgument:
// the file's format version is another one. kNotFound: there is no store and `create` is false.
// Destroying the store waits until accepted changes are on disk.
Result<std::unique_ptr<EmbeddedMetadataStore>> OpenEmbeddedMetadataStore(
    const EmbeddedMetadataOptions& options, Random* random, Executor* executor);

}  // namespace backstay::replication
