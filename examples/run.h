#pragma once

#include "examples/options.h"

namespace backstay::example {

// Trains as one rank of a job that survives the loss of a rank: after a fault the ranks that are
// left meet again with the replacements, agree on a saved step, and go on from there. checkpoints.h
// is the part that deals with Backstay; this is what any trainer has around it. Returns the exit
// code; throws std::exception with what went wrong for good.
int RunTrainer(const Options& options);

}  // namespace backstay::example
