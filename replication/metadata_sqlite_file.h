#pragma once

#include <sqlite3.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "replication/metadata_journal.h"
#include "replication/metadata_sqlite.h"

namespace backstay::replication {

// The file of an embedded metadata store (docs/formats/metadata.md). Every row carries a checksum,
// because SQLite has none.
//
// Thread:  one at a time. Every method blocks on the disk.
// Failure: after a failed Write() nothing more is written; what reached the disk shows at the next
//          Open().
class MetadataSqliteFile {
 public:
  // See OpenEmbeddedMetadataStore(). `snapshot` is what the file holds.
  static Result<std::unique_ptr<MetadataSqliteFile>> Open(const EmbeddedMetadataOptions& options,
                                                          Random* random,
                                                          MetadataSnapshot* snapshot);
  ~MetadataSqliteFile();
  MetadataSqliteFile(const MetadataSqliteFile&) = delete;
  MetadataSqliteFile& operator=(const MetadataSqliteFile&) = delete;

  // Applies `changes` in order, all or none, and returns when they are on the disk.
  Status Write(const std::vector<MetadataChange>& changes);

  static constexpr int kFormatVersion = 1;
  static constexpr int kApplicationId =
      0x424b5354;  // "BKST", in SQLite's header, tells whose file it is.

 private:
  enum class Statement { kBegin, kCommit, kPut, kDelete, kGrant, kEnd, kState, kCount };

  struct CloseDatabase {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  using StatementPtr = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

  MetadataSqliteFile(std::string path, sqlite3* database)
      : path_(std::move(path)), database_(database) {}

  Status Prepare(const EmbeddedMetadataOptions& options, Random* random);
  Status CheckFormat(bool create, bool* fresh);
  Status Create(Random* random);
  Status CheckIntegrity();
  Status Load(MetadataSnapshot* snapshot);
  Status LoadState(MetadataSnapshot* snapshot);
  Status LoadPairs(MetadataSnapshot* snapshot);
  Status LoadLeases(MetadataSnapshot* snapshot);
  Status PrepareStatements();

  Status WriteAll(const std::vector<MetadataChange>& changes);
  Status WriteOne(const MetadataChange& change);
  Status WriteState(const MetadataChange& change);
  // Moves the log into the file once it is long; its errors count as failed writes.
  Status CheckpointWhenLong();

  Status Execute(const std::string& sql);
  Result<int64_t> QueryNumber(const std::string& sql);
  Result<StatementPtr> Compile(const std::string& sql);
  sqlite3_stmt* statement(Statement which) { return statements_[static_cast<size_t>(which)].get(); }
  Status Run(Statement which);
  // The error that SQLite reported last, with the code that our callers act on.
  Status Error(const std::string& doing) const;
  Status Damaged(const std::string& what) const;

  const std::string path_;
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  std::array<StatementPtr, static_cast<size_t>(Statement::kCount)> statements_;
  std::string store_id_;
  int log_pages_ = 0;  // Of the write-ahead log, after the last commit.
  Status failure_;
};

}  // namespace backstay::replication
