// Debian's libgloo is built without the thread sanitizer, which therefore sees only half of how
// Gloo's own thread and a buffer's destructor agree (locks, but not atomic reference counts), and
// reports the destructor. Linked only into programs that are built with that sanitizer.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libgloo.so\nrace:gloo::transport::UnboundBuffer\n";
}
