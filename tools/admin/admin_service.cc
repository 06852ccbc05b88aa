#include "tools/admin/admin_service.h"

#include <deque>
#include <mutex>
#include <set>
#include <utility>

#include "tools/admin/admin_status.h"
#include "tools/admin/verify_run.h"

namespace backstay::tools {
namespace {

// A caller that does not read its answers is given up.
constexpr size_t kProgressWaitingMax = 65'536;

const Status kStarting = Unavailable("the service is starting: it waits for the metadata store");
const Status kStopping = Unavailable("the service is shutting down");

}  // namespace

// Calls that wait for an answer. A reactor is finished by whoever takes it out of the set, so
// exactly once.
struct AdminService::Pending {
  std::mutex mutex;
  std::set<grpc::ServerUnaryReactor*> waiting;  // Guarded by mutex.
  std::set<VerifyStream*> streams;              // Guarded by mutex; until gRPC is done with them.
  bool closed = false;                          // Guarded by mutex.

  bool Add(grpc::ServerUnaryReactor* reactor) {
    std::lock_guard lock(mutex);
    if (!closed) waiting.insert(reactor);
    return !closed;
  }
  bool Waits(grpc::ServerUnaryReactor* reactor) {
    std::lock_guard lock(mutex);
    return waiting.contains(reactor);
  }
  // Runs `finish` when the call still waits; under the lock, so that its buffers are alive.
  void Take(grpc::ServerUnaryReactor* reactor, const std::function<void()>& finish) {
    std::lock_guard lock(mutex);
    if (waiting.erase(reactor) == 1) finish();
  }
};

// One Verify call. gRPC writes one answer at a time; the others wait here.
//
// Thread: Push() and End() on the executor, OnWriteDone(), OnCancel() and OnDone() on gRPC's.
// Memory: kept by gRPC (until OnDone()) and by whoever else holds it.
class AdminService::VerifyStream : public grpc::ServerWriteReactor<wire::VerifyProgress> {
 public:
  VerifyStream(Executor& executor, std::shared_ptr<Pending> pending)
      : executor_(executor), pending_(std::move(pending)) {}

  // Keeps it alive until OnDone().
  void Adopt(std::shared_ptr<VerifyStream> self) { self_ = std::move(self); }
  void SetRun(std::shared_ptr<VerifyRun> run) {
    // The caller may be gone already.
    std::lock_guard lock(mutex_);
    if (!ended_) run_ = std::move(run);
  }

  void Push(wire::VerifyProgress progress) {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (waiting_.size() >= kProgressWaitingMax) {
      waiting_.clear();
      return EndLocked(NoSpace("the caller does not read its answers"));
    }
    waiting_.push_back(std::move(progress));
    WriteNext();
  }
  void End(const Status& status) {
    std::lock_guard lock(mutex_);
    EndLocked(status);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) waiting_.clear();
    if (!ok) EndLocked(Unavailable("the caller is gone"));
    WriteNext();
  }
  void OnCancel() override {
    std::lock_guard lock(mutex_);
    waiting_.clear();
    EndLocked(Unavailable("cancelled"));
    WriteNext();
  }
  void OnDone() override {
    {
      std::lock_guard lock(pending_->mutex);
      pending_->streams.erase(this);
    }
    const std::shared_ptr<VerifyStream> last = std::move(self_);
  }

 private:
  // Refuses later answers; the call ends once the waiting ones are written.
  void EndLocked(const Status& status) {
    if (ended_) return;
    ended_ = true;
    end_ = ToGrpc(status);
    // The run belongs to the executor.
    if (run_) executor_.Post([run = std::move(run_)] {});
    run_.reset();
    WriteNext();
  }
  void WriteNext() {
    if (writing_ || finished_) return;
    if (!waiting_.empty()) {
      current_ = std::move(waiting_.front());
      waiting_.pop_front();
      writing_ = true;
      StartWrite(&current_);
    } else if (ended_) {
      finished_ = true;
      Finish(end_);
    }
  }

  Executor& executor_;
  const std::shared_ptr<Pending> pending_;
  std::shared_ptr<VerifyStream> self_;

  std::mutex mutex_;  // Guards what follows.
  std::shared_ptr<VerifyRun> run_;
  std::deque<wire::VerifyProgress> waiting_;
  wire::VerifyProgress current_;  // Being written.
  bool writing_ = false;
  bool ended_ = false;
  bool finished_ = false;
  grpc::Status end_;
};

AdminService::AdminService(Executor& executor)
    : executor_(executor), pending_(std::make_shared<Pending>()) {}

AdminService::~AdminService() = default;

void AdminService::Serve(AdminSeams seams) {
  queries_ = std::make_unique<AdminQueries>(std::move(seams));
}

void AdminService::FailPending() {
  std::lock_guard lock(pending_->mutex);
  pending_->closed = true;
  for (grpc::ServerUnaryReactor* reactor : pending_->waiting) reactor->Finish(ToGrpc(kStopping));
  pending_->waiting.clear();
  // They leave the set in OnDone(), which waits for the mutex, so they are alive here.
  for (VerifyStream* stream : pending_->streams) stream->End(kStopping);
}

template <typename Request, typename Reply>
grpc::ServerUnaryReactor* AdminService::Handle(
    grpc::CallbackServerContext* context, const Request* request, Reply* reply,
    std::function<void(AdminQueries&, const Request&, Completion<Reply>)> ask) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!pending_->Add(reactor)) {
    reactor->Finish(ToGrpc(kStopping));
    return reactor;
  }
  // A copy: FailPending() may end the call, and with it gRPC's buffers, before it is read.
  auto owned = std::make_shared<Request>(*request);
  executor_.Post([this, pending = pending_, owned, reply, reactor, ask = std::move(ask)] {
    if (!pending->Waits(reactor)) return;
    if (!queries_) {
      return pending->Take(reactor, [&] { reactor->Finish(ToGrpc(kStarting)); });
    }
    ask(*queries_, *owned, [pending, owned, reply, reactor](Result<Reply> answer) {
      pending->Take(reactor, [&] {
        if (answer.ok()) *reply = std::move(*answer);
        reactor->Finish(ToGrpc(answer.status()));
      });
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Cluster(grpc::CallbackServerContext* context,
                                                const wire::ClusterRequest* request,
                                                wire::ClusterReply* reply) {
  return Handle<wire::ClusterRequest, wire::ClusterReply>(
      context, request, reply,
      [](AdminQueries& queries, const wire::ClusterRequest&, Completion<wire::ClusterReply> done) {
        queries.Cluster(std::move(done));
      });
}

grpc::ServerUnaryReactor* AdminService::Jobs(grpc::CallbackServerContext* context,
                                             const wire::JobsRequest* request,
                                             wire::JobsReply* reply) {
  return Handle<wire::JobsRequest, wire::JobsReply>(
      context, request, reply,
      [](AdminQueries& queries, const wire::JobsRequest&, Completion<wire::JobsReply> done) {
        queries.Jobs(std::move(done));
      });
}

grpc::ServerUnaryReactor* AdminService::Job(grpc::CallbackServerContext* context,
                                            const wire::JobRequest* request,
                                            wire::JobReply* reply) {
  return Handle<wire::JobRequest, wire::JobReply>(context, request, reply,
                                                  std::mem_fn(&AdminQueries::Job));
}

grpc::ServerUnaryReactor* AdminService::Snapshot(grpc::CallbackServerContext* context,
                                                 const wire::SnapshotRequest* request,
                                                 wire::SnapshotReply* reply) {
  return Handle<wire::SnapshotRequest, wire::SnapshotReply>(context, request, reply,
                                                            std::mem_fn(&AdminQueries::Snapshot));
}

grpc::ServerUnaryReactor* AdminService::OpenShard(grpc::CallbackServerContext* context,
                                                  const wire::OpenShardRequest* request,
                                                  wire::OpenShardReply* reply) {
  return Handle<wire::OpenShardRequest, wire::OpenShardReply>(
      context, request, reply, std::mem_fn(&AdminQueries::OpenShard));
}

grpc::ServerUnaryReactor* AdminService::EndJob(grpc::CallbackServerContext* context,
                                               const wire::EndJobRequest* request,
                                               wire::EndJobReply* reply) {
  return Handle<wire::EndJobRequest, wire::EndJobReply>(
      context, request, reply,
      [](AdminQueries& queries, const wire::EndJobRequest& asked,
         Completion<wire::EndJobReply> done) {
        queries.EndJob(asked, [done = std::move(done)](const Status& status) {
          if (!status.ok()) return done(status);
          done(wire::EndJobReply());
        });
      });
}

grpc::ServerWriteReactor<wire::VerifyProgress>* AdminService::Verify(
    grpc::CallbackServerContext*, const wire::VerifyRequest* request) {
  auto stream = std::make_shared<VerifyStream>(executor_, pending_);
  stream->Adopt(stream);
  {
    std::lock_guard lock(pending_->mutex);
    pending_->streams.insert(stream.get());
    if (pending_->closed) {
      stream->End(kStopping);
      return stream.get();
    }
  }
  executor_.Post([this, pending = pending_, stream, owned = *request] {
    {
      std::lock_guard lock(pending->mutex);
      if (pending->closed) return;
    }
    if (!queries_) return stream->End(kStarting);
    stream->SetRun(queries_->Verify(
        owned, [stream](wire::VerifyProgress progress) { stream->Push(std::move(progress)); },
        [stream](const Status& status) { stream->End(status); }));
  });
  return stream.get();
}

}  // namespace backstay::tools
