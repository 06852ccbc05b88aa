#include "store/offload.h"

#include <utility>

namespace backstay::store {

Offload OffloadTo(WorkerPool& pool, Executor& executor) {
  return [&pool, &executor](std::function<void()> work, std::function<void()> done) {
    return pool.Submit([&executor, work = std::move(work), done = std::move(done)]() mutable {
      work();
      work = nullptr;  // What it holds is let go of on the executor, together with `done`.
      executor.Post(std::move(done));
    });
  };
}

Offload OffloadOnto(Executor& executor) {
  return [&executor](std::function<void()> work, std::function<void()> done) {
    executor.Post([work = std::move(work), done = std::move(done)] {
      work();
      done();
    });
    return Status::Ok();
  };
}

}  // namespace backstay::store
