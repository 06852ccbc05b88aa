#include "client/wire.h"

#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

namespace backstay::client::local {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;

// Field numbers of ClientFrame's and ServiceFrame's bodies, as in local.proto.
constexpr uint32_t BodyTag(const Hello*) { return 2; }
constexpr uint32_t BodyTag(const Register*) { return 3; }
constexpr uint32_t BodyTag(const Resize*) { return 4; }
constexpr uint32_t BodyTag(const Begin*) { return 5; }
constexpr uint32_t BodyTag(const StartCopy*) { return 6; }
constexpr uint32_t BodyTag(const Seal*) { return 7; }
constexpr uint32_t BodyTag(const Abandon*) { return 8; }
constexpr uint32_t BodyTag(const SlotUnmapped*) { return 22; }
constexpr uint32_t BodyTag(const Fence*) { return 9; }
constexpr uint32_t BodyTag(const NewAttempt*) { return 10; }
constexpr uint32_t BodyTag(const Reconfigure*) { return 11; }
constexpr uint32_t BodyTag(const Fetch*) { return 12; }
constexpr uint32_t BodyTag(const ReportBadChunks*) { return 13; }
constexpr uint32_t BodyTag(const FinishRestore*) { return 14; }
constexpr uint32_t BodyTag(const SnapshotIndex*) { return 15; }
constexpr uint32_t BodyTag(const FetchChunks*) { return 16; }
constexpr uint32_t BodyTag(const CloseShard*) { return 17; }
constexpr uint32_t BodyTag(const NewestCommitted*) { return 18; }
constexpr uint32_t BodyTag(const Finish*) { return 19; }
constexpr uint32_t BodyTag(const QuerySnapshot*) { return 20; }
constexpr uint32_t BodyTag(const StepIsSound*) { return 21; }

// Proto3 leaves out what has its default, and so do we: both encoders then write the same bytes.
void Put(pbf_writer& out, uint32_t tag, uint64_t value) {
  if (value != 0) out.add_uint64(tag, value);
}
void Put(pbf_writer& out, uint32_t tag, const std::string& value) {
  if (!value.empty()) out.add_bytes(tag, value);
}
void PutSigned(pbf_writer& out, uint32_t tag, int64_t value) {
  if (value != 0) out.add_int64(tag, value);
}
void Put(pbf_writer& out, uint32_t tag, const SnapshotRef& value) {
  pbf_writer ref(out, tag);
  Put(ref, 1, value.generation);
  Put(ref, 2, value.step);
}

void Write(pbf_writer& out, const Hello& m) {
  Put(out, 1, m.protocol_version);
  Put(out, 2, m.pid);
  Put(out, 3, m.client_version);
}
void Write(pbf_writer& out, const Register& m) {
  Put(out, 1, m.job);
  Put(out, 2, m.token);
  Put(out, 3, m.shard_id);
  Put(out, 4, m.rank);
  Put(out, 5, m.world_size);
  Put(out, 6, m.replicas);
  Put(out, 7, m.versions);
  Put(out, 8, m.size_bytes);
  PutSigned(out, 9, m.numa_node);
  Put(out, 10, m.wait_for_slot);
  Put(out, 11, m.generation);
  Put(out, 12, m.has_missed_step);
  Put(out, 13, m.missed_step);
}
void Write(pbf_writer& out, const Resize& m) { Put(out, 1, m.size_bytes); }
void Write(pbf_writer& out, const Begin& m) {
  Put(out, 1, m.step);
  Put(out, 2, m.timeout_ms);
}
void Write(pbf_writer& out, const StartCopy& m) {
  Put(out, 1, m.slot_id);
  Put(out, 2, m.used_bytes);
  Put(out, 3, m.contents);
  Put(out, 4, m.epoch);
}
void Write(pbf_writer& out, const Seal& m) {
  Put(out, 1, m.slot_id);
  Put(out, 2, m.sound);
  Put(out, 3, m.epoch);
}
void Write(pbf_writer& out, const StepIsSound& m) { Put(out, 1, m.step); }
void Write(pbf_writer& out, const Abandon& m) {
  Put(out, 1, m.slot_id);
  Put(out, 2, m.epoch);
}
void Write(pbf_writer& out, const SlotUnmapped& m) { Put(out, 1, m.slot_id); }
void Write(pbf_writer& out, const Fence& m) {
  Put(out, 1, m.generation);
  Put(out, 2, m.reason);
  PutSigned(out, 3, m.unix_ms);
}
void Write(pbf_writer&, const NewAttempt&) {}
void Write(pbf_writer& out, const Reconfigure& m) {
  Put(out, 1, m.uuid);
  Put(out, 2, m.rank);
  Put(out, 3, m.world_size);
  Put(out, 4, m.shard_id);
  Put(out, 5, m.mode);
  Put(out, 6, m.exact_step);
  Put(out, 7, m.drop_state);
  Put(out, 8, m.fork_job);
  Put(out, 9, m.timeout_ms);
  Put(out, 10, m.has_old_rank);
  Put(out, 11, m.old_rank);
  Put(out, 12, m.old_generation);
}
void Write(pbf_writer& out, const Fetch& m) {
  Put(out, 1, m.shard_id);
  Put(out, 2, m.snapshot);
  Put(out, 3, m.job);
  Put(out, 4, m.whole);
  Put(out, 5, m.for_restore);
}
void Write(pbf_writer& out, const FetchChunks& m) {
  Put(out, 1, m.handle);
  Put(out, 2, m.first_chunk);
  Put(out, 3, m.chunk_count);
}
void Write(pbf_writer& out, const ReportBadChunks& m) {
  Put(out, 1, m.handle);
  if (!m.chunks.empty()) out.add_packed_uint32(2, m.chunks.begin(), m.chunks.end());
}
void Write(pbf_writer& out, const CloseShard& m) { Put(out, 1, m.handle); }
void Write(pbf_writer& out, const FinishRestore& m) {
  Put(out, 1, m.uuid);
  Put(out, 2, m.attempt);
  Put(out, 3, m.ok);
  Put(out, 4, m.error);
  Put(out, 5, m.bytes);
  Put(out, 6, m.timeout_ms);
}
void Write(pbf_writer& out, const SnapshotIndex& m) {
  Put(out, 1, m.snapshot);
  Put(out, 2, m.job);
}
void Write(pbf_writer&, const NewestCommitted&) {}
void Write(pbf_writer& out, const QuerySnapshot& m) { Put(out, 1, m.snapshot); }
void Write(pbf_writer& out, const Finish& m) { Put(out, 1, m.drop_state); }

// A value beyond its limit; caught where the frame's decoding began, like protozero's own errors.
struct FieldError {
  const char* field;
};

std::string Text(pbf_reader& in, size_t bytes_max, const char* field) {
  const protozero::data_view view = in.get_view();
  if (view.size() > bytes_max) throw FieldError{field};
  return std::string(view.data(), view.size());
}
std::string Name(pbf_reader& in, const char* field) { return Text(in, kNameBytesMax, field); }
Hash128 Digest(pbf_reader& in, const char* field) {
  const protozero::data_view view = in.get_view();
  const std::optional<Hash128> hash =
      Hash128::FromBytes(std::string_view(view.data(), view.size()));
  if (!hash) throw FieldError{field};
  return *hash;
}

// Calls `field(tag, reader)` for each field of `in`; `field` returns false for a tag it does not
// know, or one of another wire type, which is skipped.
template <typename Field>
void ForEach(pbf_reader in, const Field& field) {
  while (in.next()) {
    if (!field(in.tag_and_type(), in)) in.skip();
  }
}

constexpr uint32_t Varint(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::varint);
}
constexpr uint32_t Bytes(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::length_delimited);
}

void Read(pbf_reader in, Status* out) {
  int code = 0;
  std::string message;
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return code = static_cast<int>(field.get_uint32()), true;
    if (tag == Bytes(2)) return message = Text(field, kMessageBytesMax, "status.message"), true;
    return false;
  });
  *out = code == 0 ? Status() : Status(StatusCodeFromNumber(code), message);
}
void Read(pbf_reader in, SnapshotRef* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->generation = field.get_uint64(), true;
    if (tag == Varint(2)) return out->step = field.get_uint64(), true;
    return false;
  });
}
void Read(pbf_reader in, HelloReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->protocol_version = field.get_uint32(), true;
    if (tag == Bytes(2)) return out->node_id = Name(field, "hello.node_id"), true;
    if (tag == Varint(3)) return out->incarnation = field.get_uint64(), true;
    if (tag == Bytes(4)) return out->service_version = Name(field, "hello.service_version"), true;
    if (tag == Varint(5)) return out->chunk_bytes = field.get_uint32(), true;
    return false;
  });
}
void Read(pbf_reader in, RegisterReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->chunk_bytes = field.get_uint32(), true;
    if (tag == Varint(2)) return out->reserved_bytes_local = field.get_uint64(), true;
    if (tag == Varint(3)) return out->reserved_bytes_peers = field.get_uint64(), true;
    if (tag == Bytes(4)) {
      if (out->replica_nodes.size() == kReplicasMax) throw FieldError{"register.replica_nodes"};
      out->replica_nodes.push_back(Name(field, "register.replica_nodes"));
      return true;
    }
    return false;
  });
}
void Read(pbf_reader in, BeginReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->slot_id = field.get_uint64(), true;
    if (tag == Varint(2)) return out->size_bytes = field.get_uint64(), true;
    if (tag == Varint(3)) return out->control_bytes = field.get_uint64(), true;
    if (tag == Varint(4)) return out->has_fds = field.get_bool(), true;
    if (tag == Varint(5)) return out->generation = field.get_uint64(), true;
    if (tag == Varint(6)) return out->epoch = field.get_uint64(), true;
    return false;
  });
}
void Read(pbf_reader in, SealReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return out->digest = Digest(field, "seal.digest"), true;
    return false;
  });
}
void Read(pbf_reader in, NewAttemptReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return out->uuid = Text(field, kUuidBytesMax, "new_attempt.uuid"), true;
    return false;
  });
}
void Read(pbf_reader in, Decision* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return out->uuid = Text(field, kUuidBytesMax, "decision.uuid"), true;
    if (tag == Varint(2)) return out->generation = field.get_uint64(), true;
    if (tag == Varint(3)) return out->attempt = field.get_uint64(), true;
    if (tag == Varint(4)) return out->fresh = field.get_bool(), true;
    if (tag == Bytes(5)) return Read(field.get_message(), &out->base), true;
    if (tag == Bytes(6)) {
      const protozero::data_view root = field.get_view();
      if (root.size() == 0) return true;  // A fresh start has none.
      const auto hash = Hash128::FromBytes(std::string_view(root.data(), root.size()));
      if (!hash) throw FieldError{"decision.base_root"};
      return out->base_root = *hash, true;
    }
    if (tag == Bytes(7)) return out->why = Text(field, kMessageBytesMax, "decision.why"), true;
    if (tag == Bytes(8)) return out->shard_id = Name(field, "decision.shard_id"), true;
    if (tag == Varint(9)) return out->base_committed = field.get_bool(), true;
    if (tag == Bytes(10)) return out->base_job = Name(field, "decision.base_job"), true;
    return false;
  });
}
void Read(pbf_reader in, FetchReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->handle = field.get_uint64(), true;
    if (tag == Varint(2)) return out->size_bytes = field.get_uint64(), true;
    if (tag == Varint(3)) return out->control_bytes = field.get_uint64(), true;
    if (tag == Bytes(4)) return out->manifest = Text(field, kFrameBytesMax, "fetch.manifest"), true;
    if (tag == Bytes(5)) return out->digest = Digest(field, "fetch.digest"), true;
    if (tag == Varint(6)) return out->local = field.get_bool(), true;
    return false;
  });
}
void Read(pbf_reader in, BadChunksReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->reopened = field.get_bool(), true;
    return false;
  });
}
void Read(pbf_reader in, FinishRestoreReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->resumed = field.get_bool(), true;
    if (tag == Bytes(2)) return Read(field.get_message(), &out->next), true;
    return false;
  });
}
void Read(pbf_reader in, SnapshotIndexReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return Read(field.get_message(), &out->snapshot), true;
    if (tag == Bytes(2)) {
      if (out->manifests.size() == kManifestsMax) throw FieldError{"snapshot_index.manifests"};
      out->manifests.push_back(Text(field, kFrameBytesMax, "snapshot_index.manifests"));
      return true;
    }
    return false;
  });
}
void Read(pbf_reader in, NewestCommittedReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->any = field.get_bool(), true;
    if (tag == Bytes(2)) return Read(field.get_message(), &out->snapshot), true;
    return false;
  });
}
void Read(pbf_reader in, QuerySnapshotReply* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->state = field.get_uint32(), true;
    if (tag == Bytes(2))
      return out->reason = Text(field, kMessageBytesMax, "query_snapshot.reason"), true;
    return false;
  });
}
void Read(pbf_reader in, Event* out) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return out->kind = field.get_uint32(), true;
    if (tag == Bytes(2)) return Read(field.get_message(), &out->snapshot), true;
    if (tag == Bytes(3)) return Read(field.get_message(), &out->status), true;
    if (tag == Varint(4)) return out->generation = field.get_uint64(), true;
    if (tag == Varint(5)) return out->slot_id = field.get_uint64(), true;
    return false;
  });
}

template <typename Body>
bool ReadBody(pbf_reader& field, ServiceFrame* frame) {
  Body body;
  Read(field.get_message(), &body);
  frame->body = std::move(body);
  return true;
}

bool ReadFrameField(uint32_t tag, pbf_reader& field, ServiceFrame* frame) {
  switch (tag) {
    case Varint(1):
      frame->request = field.get_uint64();
      return true;
    case Bytes(2):
      Read(field.get_message(), &frame->status);
      return true;
    case Bytes(3):
      return ReadBody<HelloReply>(field, frame);
    case Bytes(4):
      return ReadBody<RegisterReply>(field, frame);
    case Bytes(5):
      return ReadBody<BeginReply>(field, frame);
    case Bytes(6):
      return ReadBody<NewAttemptReply>(field, frame);
    case Bytes(7):
      return ReadBody<Decision>(field, frame);
    case Bytes(8):
      return ReadBody<FetchReply>(field, frame);
    case Bytes(9):
      return ReadBody<SnapshotIndexReply>(field, frame);
    case Bytes(10):
      return ReadBody<NewestCommittedReply>(field, frame);
    case Bytes(11):
      return ReadBody<QuerySnapshotReply>(field, frame);
    case Bytes(12):
      return ReadBody<SealReply>(field, frame);
    case Bytes(13):
      return ReadBody<Event>(field, frame);
    case Bytes(14):
      return ReadBody<FinishRestoreReply>(field, frame);
    case Bytes(15):
      return ReadBody<BadChunksReply>(field, frame);
    default:
      return false;
  }
}

}  // namespace

template <typename Body>
std::string EncodeFrame(uint64_t request, const Body& body) {
  std::string frame(sizeof(uint32_t), '\0');
  {
    std::string encoded;
    pbf_writer in(encoded);
    Write(in, body);
    pbf_writer out(frame);
    Put(out, 1, request);
    out.add_message(BodyTag(&body), encoded);  // Also when empty: the body's tag is the request.
  }
  const auto size = static_cast<uint32_t>(frame.size() - sizeof(uint32_t));
  for (size_t i = 0; i < sizeof size; ++i) frame[i] = static_cast<char>(size >> (8 * i));
  return frame;
}

template std::string EncodeFrame(uint64_t, const Hello&);
template std::string EncodeFrame(uint64_t, const Register&);
template std::string EncodeFrame(uint64_t, const Resize&);
template std::string EncodeFrame(uint64_t, const Begin&);
template std::string EncodeFrame(uint64_t, const StartCopy&);
template std::string EncodeFrame(uint64_t, const Seal&);
template std::string EncodeFrame(uint64_t, const StepIsSound&);
template std::string EncodeFrame(uint64_t, const Abandon&);
template std::string EncodeFrame(uint64_t, const SlotUnmapped&);
template std::string EncodeFrame(uint64_t, const Fence&);
template std::string EncodeFrame(uint64_t, const NewAttempt&);
template std::string EncodeFrame(uint64_t, const Reconfigure&);
template std::string EncodeFrame(uint64_t, const Fetch&);
template std::string EncodeFrame(uint64_t, const FetchChunks&);
template std::string EncodeFrame(uint64_t, const ReportBadChunks&);
template std::string EncodeFrame(uint64_t, const CloseShard&);
template std::string EncodeFrame(uint64_t, const FinishRestore&);
template std::string EncodeFrame(uint64_t, const SnapshotIndex&);
template std::string EncodeFrame(uint64_t, const NewestCommitted&);
template std::string EncodeFrame(uint64_t, const QuerySnapshot&);
template std::string EncodeFrame(uint64_t, const Finish&);

Result<ServiceFrame> DecodeServiceFrame(std::string_view bytes) {
  if (bytes.size() > kFrameBytesMax) return Corrupt("a frame of the service is too long");
  ServiceFrame frame;
  try {
    ForEach(pbf_reader(bytes.data(), bytes.size()),
            [&](uint32_t tag, pbf_reader& field) { return ReadFrameField(tag, field, &frame); });
  } catch (const FieldError& error) {
    return Corrupt(std::string("a frame of the service has a value beyond its limit: ") +
                   error.field);
  } catch (const protozero::exception& error) {
    return Corrupt(std::string("a frame of the service is malformed: ") + error.what());
  }
  return frame;
}

}  // namespace backstay::client::local
