#pragma once

#include <functional>

#include "base/executor.h"
#include "base/status.h"
#include "base/worker_pool.h"

namespace backstay::store {

// Runs `work` away from the control executor, then `done` on it; neither inside the call. An error
// (kNoSpace: too much waits already) means that neither will run. What `work` uses stays alive
// until `done` has run. Thread: the control executor.
using Offload = std::function<Status(std::function<void()> work, std::function<void()> done)>;

// On a thread of `pool`. Both outlive the last `done`.
Offload OffloadTo(WorkerPool& pool, Executor& executor);
// As a task of `executor` itself, for the simulation.
Offload OffloadOnto(Executor& executor);

}  // namespace backstay::store
