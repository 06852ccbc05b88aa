#include "replication/metadata_wire.h"

#include <utility>

namespace backstay::replication {

metadata_wire::Commit ToWire(const Transaction& transaction) {
  metadata_wire::Commit message;
  for (const Compare& compare : transaction.compares) {
    metadata_wire::Compare* out = message.add_compares();
    out->set_key(compare.key);
    out->set_target(compare.target == Compare::Target::kCreateRevision
                        ? metadata_wire::Compare::CREATE_REVISION
                        : metadata_wire::Compare::MOD_REVISION);
    out->set_revision(compare.revision);
  }
  for (const Operation& operation : transaction.operations) {
    metadata_wire::Operation* out = message.add_operations();
    out->set_kind(operation.kind == Operation::Kind::kPut ? metadata_wire::Operation::PUT
                                                          : metadata_wire::Operation::DELETE);
    out->set_key(operation.key);
    out->set_value(operation.value);
    out->set_lease(operation.lease);
  }
  return message;
}

Result<Transaction> FromWire(const metadata_wire::Commit& message) {
  Transaction transaction;
  for (const metadata_wire::Compare& in : message.compares()) {
    Compare compare{.key = in.key(), .target = {}, .revision = in.revision()};
    switch (in.target()) {
      case metadata_wire::Compare::CREATE_REVISION:
        compare.target = Compare::Target::kCreateRevision;
        break;
      case metadata_wire::Compare::MOD_REVISION:
        compare.target = Compare::Target::kModRevision;
        break;
      default:
        return InvalidArgument("a metadata transaction compares something unknown");
    }
    transaction.compares.push_back(std::move(compare));
  }
  for (const metadata_wire::Operation& in : message.operations()) {
    Operation operation{.kind = {}, .key = in.key(), .value = in.value(), .lease = in.lease()};
    switch (in.kind()) {
      case metadata_wire::Operation::PUT:
        operation.kind = Operation::Kind::kPut;
        break;
      case metadata_wire::Operation::DELETE:
        operation.kind = Operation::Kind::kDelete;
        break;
      default:
        return InvalidArgument("a metadata transaction does something unknown");
    }
    transaction.operations.push_back(std::move(operation));
  }
  return transaction;
}

metadata_wire::RangeReply ToWire(const RangeResult& result) {
  metadata_wire::RangeReply message;
  for (const KeyValue& pair : result.pairs) {
    metadata_wire::KeyValue* out = message.add_pairs();
    out->set_key(pair.key);
    out->set_value(pair.value);
    out->set_create_revision(pair.create_revision);
    out->set_mod_revision(pair.mod_revision);
    out->set_lease(pair.lease);
  }
  message.set_revision(result.revision);
  return message;
}

RangeResult FromWire(const metadata_wire::RangeReply& message) {
  RangeResult result;
  for (const metadata_wire::KeyValue& in : message.pairs()) {
    result.pairs.push_back({.key = in.key(),
                            .value = in.value(),
                            .create_revision = in.create_revision(),
                            .mod_revision = in.mod_revision(),
                            .lease = in.lease()});
  }
  result.revision = message.revision();
  return result;
}

}  // namespace backstay::replication
