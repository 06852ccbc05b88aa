#pragma once

#include "base/status.h"
#include "replication/metadata.pb.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// Between the metadata store's types and its messages. Values are copied as they are: limits are
// the store's business, so that they hold for every caller alike.

metadata_wire::Commit ToWire(const Transaction& transaction);
// kInvalidArgument for an operation or comparison of a kind that this program does not know.
Result<Transaction> FromWire(const metadata_wire::Commit& message);

metadata_wire::RangeReply ToWire(const RangeResult& result);
RangeResult FromWire(const metadata_wire::RangeReply& message);

}  // namespace backstay::replication
