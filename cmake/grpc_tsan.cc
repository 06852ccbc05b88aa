// Debian's gRPC, Abseil and Protobuf are built without the thread sanitizer, which therefore does
// not see how they agree between their own threads: every message that they hand from one to
// another looks like a race, with a frame of gRPC in one of the stacks. What our callbacks do there
// is to post to an executor or to take a lock; the state behind it is checked by tests without
// gRPC. Linked only into what is built with that sanitizer.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:grpc::\nrace:libgrpc\nrace:libgpr.so\nrace:libabsl_\nrace:libprotobuf.so\n"
         "thread:libgpr.so\n";
}

extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1";
}
