#include "replication/metadata_sqlite_file.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/units.h"

namespace backstay::replication {
namespace {

// SQLite's own default for automatic checkpoints. They are switched off because they hide their
// errors: after a failed sync of the file the log must not be taken for moved.
constexpr int kLogPagesMax = 1000;

constexpr char kSchema[] = R"sql(
  CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    last_lease INTEGER NOT NULL,
    checksum BLOB NOT NULL);
  CREATE TABLE pairs (
    key BLOB PRIMARY KEY,
    value BLOB NOT NULL,
    create_revision INTEGER NOT NULL,
    mod_revision INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    checksum BLOB NOT NULL) WITHOUT ROWID;
  CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    ttl_ns INTEGER NOT NULL,
    checksum BLOB NOT NULL);
)sql";

// Bytes in a form that no other row shares: numbers as 8 little-endian bytes, strings after their
// length.
class RowHasher {
 public:
  RowHasher& Add(uint64_t number) {
    for (int i = 0; i < 8; ++i, number >>= 8) bytes_.push_back(static_cast<char>(number & 0xff));
    return *this;
  }
  RowHasher& Add(std::string_view text) {
    Add(uint64_t{text.size()});
    bytes_.append(text);
    return *this;
  }
  std::string Checksum() const { return HashBytes(std::string_view(bytes_)).ToByteString(); }

 private:
  std::string bytes_;
};

std::string PairChecksum(const KeyValue& pair) {
  return RowHasher()
      .Add(std::string_view("pair"))
      .Add(pair.key)
      .Add(pair.value)
      .Add(pair.create_revision)
      .Add(pair.mod_revision)
      .Add(pair.lease)
      .Checksum();
}

std::string LeaseChecksum(const MetadataLease& lease) {
  return RowHasher()
      .Add(std::string_view("lease"))
      .Add(lease.id)
      .Add(static_cast<uint64_t>(lease.ttl.count()))
      .Checksum();
}

std::string StateChecksum(const std::string& store_id, Revision revision, LeaseId last_lease) {
  return RowHasher()
      .Add(std::string_view("state"))
      .Add(store_id)
      .Add(revision)
      .Add(last_lease)
      .Checksum();
}

void BindNumber(sqlite3_stmt* statement, int index, uint64_t number) {
  sqlite3_bind_int64(statement, index, static_cast<sqlite3_int64>(number));
}

// The bytes are borrowed until the statement has run. An empty string binds as an empty blob, not
// as NULL.
void BindBlob(sqlite3_stmt* statement, int index, std::string_view bytes) {
  const char* data = bytes.data() != nullptr ? bytes.data() : "";
  sqlite3_bind_blob64(statement, index, data, bytes.size(), SQLITE_STATIC);
}

uint64_t ColumnNumber(sqlite3_stmt* statement, int index) {
  return static_cast<uint64_t>(sqlite3_column_int64(statement, index));
}

std::string ColumnBytes(sqlite3_stmt* statement, int index) {
  const void* data = sqlite3_column_blob(statement, index);
  const int size_bytes = sqlite3_column_bytes(statement, index);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size_bytes);
}

}  // namespace

Result<std::unique_ptr<MetadataSqliteFile>> MetadataSqliteFile::Open(
    const EmbeddedMetadataOptions& options, Random* random, MetadataSnapshot* snapshot) {
  const std::string path = options.directory + "/" + kMetadataFileName;
  const int flags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (options.create ? SQLITE_OPEN_CREATE : 0);
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &database, flags, nullptr);
  if (database == nullptr) return NoSpace("opening " + path + ": out of memory");
  std::unique_ptr<MetadataSqliteFile> file(new MetadataSqliteFile(path, database));
  sqlite3_extended_result_codes(database, 1);
  if (code != SQLITE_OK) {
    if (!options.create && sqlite3_system_errno(database) == ENOENT) {
      return NotFound("there is no metadata store in " + options.directory);
    }
    return file->Error("opening");
  }
  BACKSTAY_RETURN_IF_ERROR(file->Prepare(options, random));
  BACKSTAY_RETURN_IF_ERROR(file->Load(snapshot));
  BACKSTAY_RETURN_IF_ERROR(file->PrepareStatements());
  return file;
}

MetadataSqliteFile::~MetadataSqliteFile() {
  // Closing would checkpoint by itself and hide the error. The log is found and replayed by the
  // next Open().
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

Status MetadataSqliteFile::Prepare(const EmbeddedMetadataOptions& options, Random* random) {
  // The lock is taken at the first read and held until the file is closed: a second service finds
  // it busy.
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA locking_mode = EXCLUSIVE"));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA trusted_schema = OFF"));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA cell_size_check = ON"));
  bool fresh = false;
  BACKSTAY_RETURN_IF_ERROR(CheckFormat(options.create, &fresh));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA wal_autocheckpoint = 0"));
  BACKSTAY_ASSIGN_OR_RETURN(const int64_t page_bytes, QueryNumber("PRAGMA page_size"));
  const uint64_t page_count_max = options.file_bytes_max / static_cast<uint64_t>(page_bytes);
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA max_page_count = " + std::to_string(page_count_max)));
  sqlite3_wal_hook(
      database_.get(),
      [](void* pages, sqlite3*, const char*, int page_count) {
        *static_cast<int*>(pages) = page_count;
        return SQLITE_OK;
      },
      &log_pages_);
  if (fresh) return Create(random);
  return CheckIntegrity();
}

Status MetadataSqliteFile::CheckFormat(bool create, bool* fresh) {
  BACKSTAY_ASSIGN_OR_RETURN(const int64_t application_id, QueryNumber("PRAGMA application_id"));
  BACKSTAY_ASSIGN_OR_RETURN(const int64_t version, QueryNumber("PRAGMA user_version"));
  BACKSTAY_ASSIGN_OR_RETURN(const int64_t tables,
                            QueryNumber("SELECT count(*) FROM sqlite_schema"));
  *fresh = application_id == 0 && version == 0 && tables == 0;
  if (*fresh && !create) return NotFound(path_ + " is empty: there is no metadata store in it");
  if (*fresh) return Status::Ok();
  if (application_id != kApplicationId)
    return InvalidArgument(path_ + " is not a Backstay metadata store");
  if (version != kFormatVersion) {
    return InvalidArgument(path_ + " has format version " + std::to_string(version) +
                           "; this program reads and writes version " +
                           std::to_string(kFormatVersion));
  }
  return Status::Ok();
}

Status MetadataSqliteFile::Create(Random* random) {
  // One transaction: a crash leaves a store with its id, or an empty file that is made again.
  BACKSTAY_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  BACKSTAY_RETURN_IF_ERROR(Execute(kSchema));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA application_id = " + std::to_string(kApplicationId)));
  BACKSTAY_RETURN_IF_ERROR(Execute("PRAGMA user_version = " + std::to_string(kFormatVersion)));
  BACKSTAY_ASSIGN_OR_RETURN(const StatementPtr insert,
                            Compile("INSERT INTO state VALUES (1, ?, 0, 0, ?)"));
  const std::string store_id = random->Hex128();
  const std::string checksum = StateChecksum(store_id, 0, kNoLease);
  sqlite3_bind_text(insert.get(), 1, store_id.data(), static_cast<int>(store_id.size()),
                    SQLITE_STATIC);
  BindBlob(insert.get(), 2, checksum);
  if (sqlite3_step(insert.get()) != SQLITE_DONE) return Error("making");
  return Execute("COMMIT");
}

Status MetadataSqliteFile::CheckIntegrity() {
  BACKSTAY_ASSIGN_OR_RETURN(const StatementPtr check, Compile("PRAGMA integrity_check(1)"));
  if (sqlite3_step(check.get()) != SQLITE_ROW) return Error("checking");
  const std::string verdict = ColumnBytes(check.get(), 0);
  return verdict == "ok" ? Status::Ok() : Damaged(verdict);
}

Status MetadataSqliteFile::Load(MetadataSnapshot* snapshot) {
  BACKSTAY_RETURN_IF_ERROR(LoadState(snapshot));
  BACKSTAY_RETURN_IF_ERROR(LoadPairs(snapshot));
  return LoadLeases(snapshot);
}

Status MetadataSqliteFile::LoadState(MetadataSnapshot* snapshot) {
  BACKSTAY_ASSIGN_OR_RETURN(const StatementPtr state,
                            Compile("SELECT store_id, revision, last_lease, checksum FROM state"));
  const int code = sqlite3_step(state.get());
  if (code == SQLITE_DONE) return Damaged("its state row is missing");
  if (code != SQLITE_ROW) return Error("reading");
  store_id_ = ColumnBytes(state.get(), 0);
  snapshot->store_id = StoreId(store_id_);
  snapshot->revision = ColumnNumber(state.get(), 1);
  snapshot->last_lease = ColumnNumber(state.get(), 2);
  if (ColumnBytes(state.get(), 3) !=
      StateChecksum(store_id_, snapshot->revision, snapshot->last_lease)) {
    return Damaged("the checksum of its state row is wrong");
  }
  return Status::Ok();
}

Status MetadataSqliteFile::LoadPairs(MetadataSnapshot* snapshot) {
  BACKSTAY_ASSIGN_OR_RETURN(const StatementPtr pairs,
                            Compile("SELECT key, value, create_revision, mod_revision, lease, "
                                    "checksum FROM pairs ORDER BY key"));
  int code = sqlite3_step(pairs.get());
  for (; code == SQLITE_ROW; code = sqlite3_step(pairs.get())) {
    KeyValue pair{.key = ColumnBytes(pairs.get(), 0),
                  .value = ColumnBytes(pairs.get(), 1),
                  .create_revision = ColumnNumber(pairs.get(), 2),
                  .mod_revision = ColumnNumber(pairs.get(), 3),
                  .lease = ColumnNumber(pairs.get(), 4)};
    if (ColumnBytes(pairs.get(), 5) != PairChecksum(pair))
      return Damaged("the checksum of a key's row is wrong");
    snapshot->pairs.push_back(std::move(pair));
  }
  return code == SQLITE_DONE ? Status::Ok() : Error("reading");
}

Status MetadataSqliteFile::LoadLeases(MetadataSnapshot* snapshot) {
  BACKSTAY_ASSIGN_OR_RETURN(const StatementPtr leases,
                            Compile("SELECT id, ttl_ns, checksum FROM leases ORDER BY id"));
  int code = sqlite3_step(leases.get());
  for (; code == SQLITE_ROW; code = sqlite3_step(leases.get())) {
    const MetadataLease lease{.id = ColumnNumber(leases.get(), 0),
                              .ttl = Duration(static_cast<int64_t>(ColumnNumber(leases.get(), 1)))};
    if (ColumnBytes(leases.get(), 2) != LeaseChecksum(lease))
      return Damaged("the checksum of a lease's row is wrong");
    snapshot->leases.push_back(lease);
  }
  return code == SQLITE_DONE ? Status::Ok() : Error("reading");
}

Status MetadataSqliteFile::PrepareStatements() {
  const std::pair<Statement, const char*> texts[] = {
      {Statement::kBegin, "BEGIN IMMEDIATE"},
      {Statement::kCommit, "COMMIT"},
      {Statement::kPut, "INSERT OR REPLACE INTO pairs VALUES (?, ?, ?, ?, ?, ?)"},
      {Statement::kDelete, "DELETE FROM pairs WHERE key = ?"},
      {Statement::kGrant, "INSERT OR REPLACE INTO leases VALUES (?, ?, ?)"},
      {Statement::kEnd, "DELETE FROM leases WHERE id = ?"},
      {Statement::kState,
       "UPDATE state SET revision = ?, last_lease = ?, checksum = ? WHERE id = 1"},
  };
  static_assert(std::size(texts) == static_cast<size_t>(Statement::kCount));
  for (const auto& [which, text] : texts) {
    BACKSTAY_ASSIGN_OR_RETURN(statements_[static_cast<size_t>(which)], Compile(text));
  }
  return Status::Ok();
}

Status MetadataSqliteFile::Write(const std::vector<MetadataChange>& changes) {
  if (failure_.ok()) failure_ = WriteAll(changes);
  return failure_;
}

Status MetadataSqliteFile::WriteAll(const std::vector<MetadataChange>& changes) {
  if (changes.empty()) return Status::Ok();
  BACKSTAY_RETURN_IF_ERROR(Run(Statement::kBegin));
  for (const MetadataChange& change : changes) BACKSTAY_RETURN_IF_ERROR(WriteOne(change));
  BACKSTAY_RETURN_IF_ERROR(WriteState(changes.back()));
  BACKSTAY_RETURN_IF_ERROR(Run(Statement::kCommit));
  return CheckpointWhenLong();
}

Status MetadataSqliteFile::WriteOne(const MetadataChange& change) {
  for (const MetadataLease& lease : change.granted) {
    const std::string checksum = LeaseChecksum(lease);
    BindNumber(statement(Statement::kGrant), 1, lease.id);
    BindNumber(statement(Statement::kGrant), 2, static_cast<uint64_t>(lease.ttl.count()));
    BindBlob(statement(Statement::kGrant), 3, checksum);
    BACKSTAY_RETURN_IF_ERROR(Run(Statement::kGrant));
  }
  for (const std::string& key : change.deletes) {
    BindBlob(statement(Statement::kDelete), 1, key);
    BACKSTAY_RETURN_IF_ERROR(Run(Statement::kDelete));
  }
  for (const KeyValue& pair : change.puts) {
    const std::string checksum = PairChecksum(pair);
    sqlite3_stmt* put = statement(Statement::kPut);
    BindBlob(put, 1, pair.key);
    BindBlob(put, 2, pair.value);
    BindNumber(put, 3, pair.create_revision);
    BindNumber(put, 4, pair.mod_revision);
    BindNumber(put, 5, pair.lease);
    BindBlob(put, 6, checksum);
    BACKSTAY_RETURN_IF_ERROR(Run(Statement::kPut));
  }
  for (const LeaseId lease : change.ended) {
    BindNumber(statement(Statement::kEnd), 1, lease);
    BACKSTAY_RETURN_IF_ERROR(Run(Statement::kEnd));
  }
  return Status::Ok();
}

Status MetadataSqliteFile::WriteState(const MetadataChange& change) {
  const std::string checksum = StateChecksum(store_id_, change.revision, change.last_lease);
  BindNumber(statement(Statement::kState), 1, change.revision);
  BindNumber(statement(Statement::kState), 2, change.last_lease);
  BindBlob(statement(Statement::kState), 3, checksum);
  return Run(Statement::kState);
}

Status MetadataSqliteFile::CheckpointWhenLong() {
  if (log_pages_ < kLogPagesMax) return Status::Ok();
  const int code = sqlite3_wal_checkpoint_v2(database_.get(), "main", SQLITE_CHECKPOINT_PASSIVE,
                                             nullptr, nullptr);
  return code == SQLITE_OK ? Status::Ok() : Error("moving the log into");
}

Status MetadataSqliteFile::Execute(const std::string& sql) {
  const int code = sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status::Ok() : Error("preparing");
}

Result<int64_t> MetadataSqliteFile::QueryNumber(const std::string& sql) {
  BACKSTAY_ASSIGN_OR_RETURN(const StatementPtr query, Compile(sql));
  if (sqlite3_step(query.get()) != SQLITE_ROW) return Error("reading");
  return static_cast<int64_t>(sqlite3_column_int64(query.get(), 0));
}

Result<MetadataSqliteFile::StatementPtr> MetadataSqliteFile::Compile(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql.c_str(), -1, &statement, nullptr) != SQLITE_OK)
    return Error("reading");
  return StatementPtr(statement);
}

Status MetadataSqliteFile::Run(Statement which) {
  sqlite3_stmt* const run = statement(which);
  const int code = sqlite3_step(run);
  const Status status = code == SQLITE_DONE ? Status::Ok() : Error("writing");
  sqlite3_reset(run);
  sqlite3_clear_bindings(run);
  return status;
}

Status MetadataSqliteFile::Error(const std::string& doing) const {
  const int code = sqlite3_extended_errcode(database_.get());
  const std::string what = doing + " " + path_ + ": " + sqlite3_errmsg(database_.get());
  const int system = sqlite3_system_errno(database_.get());
  const std::string detail = system != 0 ? what + " (" + std::strerror(system) + ")" : what;
  switch (code & 0xff) {
    case SQLITE_FULL:
      return NoSpace(detail + "; free space on its disk, then start the service again");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(what + "; another service uses it");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Damaged(sqlite3_errmsg(database_.get()));
    default:
      return Unavailable(detail);
  }
}

Status MetadataSqliteFile::Damaged(const std::string& what) const {
  return Corrupt("the metadata store " + path_ + " is damaged: " + what +
                 "; put a sound copy in its place, or move it away to start an empty store");
}

}  // namespace backstay::replication
