#include "tools/service/metrics.h"

#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <array>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "tools/cli/names.h"

namespace backstay::tools {

using replication::wire::NodeStatusReply;

namespace {

struct MemoryKind {
  const char* label;
  uint64_t (NodeStatusReply::*bytes)() const;
};

constexpr std::array<MemoryKind, 8> kMemoryKinds = {{
    {"reserved", &NodeStatusReply::reserved_bytes},
    {"own", &NodeStatusReply::own_bytes},
    {"held", &NodeStatusReply::held_bytes},
    {"fetched", &NodeStatusReply::fetched_bytes},
    {"in_flight", &NodeStatusReply::in_flight_bytes},
    {"pinned", &NodeStatusReply::pinned_bytes},
    {"quarantined", &NodeStatusReply::quarantined_bytes},
    {"free", &NodeStatusReply::free_slot_bytes},
}};

}  // namespace

struct Metrics::Figures {
  using GaugeFamily = prometheus::Family<prometheus::Gauge>;
  struct Series {
    GaugeFamily* family;
    prometheus::Gauge* gauge;
  };

  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::string node_id;
  GaugeFamily* memory = nullptr;
  GaugeFamily* budget = nullptr;
  GaugeFamily* peer_read = nullptr;
  GaugeFamily* peer_served = nullptr;
  GaugeFamily* peer_failures = nullptr;
  GaugeFamily* scrubbed = nullptr;
  GaugeFamily* scrub_bad = nullptr;
  GaugeFamily* scrub_passes = nullptr;
  GaugeFamily* shards = nullptr;
  GaugeFamily* trainers = nullptr;
  GaugeFamily* generation = nullptr;
  std::map<std::string, std::vector<Series>> series_of_job;  // Of the last Update().
  std::unique_ptr<prometheus::Exposer> exposer;  // Last: it is stopped before what it reads goes.

  GaugeFamily* Family(const std::string& name, const std::string& help) {
    return &prometheus::BuildGauge()
                .Name(name)
                .Help(help)
                .Labels({{"node", node_id}})
                .Register(*registry);
  }
};

Metrics::Metrics(std::unique_ptr<Figures> figures) : figures_(std::move(figures)) {}
Metrics::~Metrics() = default;

Result<std::unique_ptr<Metrics>> Metrics::Listen(const std::string& address,
                                                 const std::string& node_id) {
  auto figures = std::make_unique<Figures>();
  Figures& f = *figures;
  f.node_id = node_id;
  f.memory = f.Family("backstay_memory_bytes", "Memory of the service by what it is used for");
  f.budget = f.Family("backstay_memory_budget_bytes", "Memory that the service may use for shards");
  f.peer_read =
      f.Family("backstay_peer_read_bytes", "Bytes read from a peer since the service started");
  f.peer_served =
      f.Family("backstay_peer_served_bytes", "Bytes served to a peer since the service started");
  f.peer_failures = f.Family("backstay_peer_failures",
                             "Connections to a peer that could not be made, or broke while read, "
                             "since the service started");
  f.scrubbed = f.Family("backstay_scrubbed_bytes",
                        "Bytes of held shards read again unasked since the service started");
  f.scrub_bad =
      f.Family("backstay_scrub_bad_shards", "Damaged shards found so since the service started");
  f.scrub_passes = f.Family("backstay_scrub_passes",
                            "Times that everything held was read again since the service started");
  f.shards = f.Family("backstay_shards",
                      "Complete shards in memory, by job and whether they are committed");
  f.trainers = f.Family("backstay_trainers", "Live trainer processes of a job on this node");
  f.generation = f.Family("backstay_job_generation", "Generation of a job as this node knows it");
  try {
    f.exposer = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/1);
  } catch (const std::exception& error) {
    return Unavailable(
        "cannot serve metrics on " + address + ": " + error.what() +
        "; is the port in use? --metrics-address chooses another, an empty one turns them off");
  }
  f.exposer->RegisterCollectable(f.registry);
  return std::unique_ptr<Metrics>(new Metrics(std::move(figures)));
}

void Metrics::Update(const NodeStatusReply& status) {
  Figures& f = *figures_;
  for (const MemoryKind& kind : kMemoryKinds) {
    f.memory->Add({{"kind", kind.label}}).Set(static_cast<double>((status.*kind.bytes)()));
  }
  f.budget->Add({}).Set(static_cast<double>(status.budget_bytes()));
  f.scrubbed->Add({}).Set(static_cast<double>(status.scrub().bytes()));
  f.scrub_bad->Add({}).Set(static_cast<double>(status.scrub().bad_shards()));
  f.scrub_passes->Add({}).Set(static_cast<double>(status.scrub().passes()));
  for (const auto& peer : status.peers()) {
    const prometheus::Labels labels = {{"peer", peer.node_id()}, {"transport", peer.transport()}};
    f.peer_read->Add(labels).Set(static_cast<double>(peer.bytes_read()));
    f.peer_served->Add(labels).Set(static_cast<double>(peer.bytes_served()));
    f.peer_failures->Add(labels).Set(static_cast<double>(peer.failures()));
  }
  UpdateJobs(status);
}

void Metrics::UpdateJobs(const NodeStatusReply& status) {
  Figures& f = *figures_;
  std::map<std::string, std::vector<Figures::Series>> known = std::move(f.series_of_job);
  f.series_of_job.clear();
  for (const auto& job : status.jobs()) {
    std::vector<Figures::Series>& series = f.series_of_job[job.job()];
    // `job` is Prometheus's own label, and one value that is not UTF-8 makes it refuse the page.
    const std::string name = ShowName(job.job());
    const auto set = [&](Figures::GaugeFamily* family, const prometheus::Labels& labels,
                         double value) {
      prometheus::Gauge& gauge = family->Add(labels);
      gauge.Set(value);
      series.push_back({family, &gauge});
    };
    double committed = 0;
    for (const auto& shard : job.shards()) committed += shard.committed() ? 1 : 0;
    set(f.shards, {{"training_job", name}, {"committed", "yes"}}, committed);
    set(f.shards, {{"training_job", name}, {"committed", "no"}},
        static_cast<double>(job.shards_size()) - committed);
    set(f.trainers, {{"training_job", name}}, static_cast<double>(job.trainers()));
    set(f.generation, {{"training_job", name}}, static_cast<double>(job.generation()));
    known.erase(job.job());
  }
  for (const auto& [job, forgotten] : known) {
    for (const Figures::Series& series : forgotten) series.family->Remove(series.gauge);
  }
}

int Metrics::port() const { return figures_->exposer->GetListeningPorts().front(); }

}  // namespace backstay::tools
