#include <filesystem>
#include <optional>
#include <utility>

#include "base/random.h"
#include "replication/metadata_sqlite.h"
#include "tests/contract/metadata/metadata_backend.h"
#include "tests/support/memory_metadata_store.h"
#include "tests/support/temporary_directory.h"

namespace backstay::testing {
namespace {

class MemoryBackend : public MetadataBackend {
 public:
  replication::MetadataStore& client(int index) override { return index == 0 ? *first_ : *second_; }

  void Restart() override {
    service_.Stop();
    service_.Start();
  }

  bool Replace() override {
    service_.Replace(StoreId("another"));
    return true;
  }

 private:
  MemoryMetadata service_{&executor_, StoreId("memory")};
  std::unique_ptr<MemoryMetadataClient> first_ = service_.NewClient();
  std::unique_ptr<MemoryMetadataClient> second_ = service_.NewClient();
};

class EmbeddedBackend : public MetadataBackend {
 public:
  EmbeddedBackend() { Open(); }

  replication::MetadataStore& client(int) override { return *store_; }

  void Restart() override {
    store_.reset();
    Open();
  }

  bool Replace() override { return false; }

 private:
  void Open() {
    store_ = replication::OpenEmbeddedMetadataStore({.directory = directory_.path()}, &random_,
                                                    &executor_)
                 .value();
  }

  TemporaryDirectory directory_;
  SeededRandom random_{1};
  std::unique_ptr<replication::EmbeddedMetadataStore> store_;
};

}  // namespace

std::unique_ptr<MetadataBackend> MakeMemoryBackend() { return std::make_unique<MemoryBackend>(); }
std::unique_ptr<MetadataBackend> MakeEmbeddedBackend() {
  return std::make_unique<EmbeddedBackend>();
}

}  // namespace backstay::testing
