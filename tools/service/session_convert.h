#pragma once

#include "client/local.pb.h"
#include "replication/trainer_port.h"

// Between the local protocol's messages and the plain structs of replication/trainer_port.h. Values
// are taken as they are; whoever uses them checks them.
namespace backstay::tools {

SnapshotId FromWire(const client::wire::SnapshotRef& snapshot);
replication::ShardClaim FromWire(const client::wire::Register& request);
replication::ReconfigureRequest FromWire(const client::wire::Reconfigure& request);
replication::FetchRequest FromWire(const client::wire::Fetch& request);
replication::FinishRestoreRequest FromWire(const client::wire::FinishRestore& request);

void ToWire(const Status& status, client::wire::StatusMessage& out);
void ToWire(const SnapshotId& snapshot, client::wire::SnapshotRef& out);
void ToWire(const replication::ClaimReply& reply, client::wire::RegisterReply& out);
void ToWire(const replication::BeginReply& reply, client::wire::BeginReply& out);
void ToWire(const replication::DecisionReply& reply, client::wire::Decision& out);
void ToWire(const replication::FetchReply& reply, client::wire::FetchReply& out);
void ToWire(const replication::FinishRestoreReply& reply, client::wire::FinishRestoreReply& out);
void ToWire(const replication::SnapshotIndexReply& reply, client::wire::SnapshotIndexReply& out);
void ToWire(const replication::QuerySnapshotReply& reply, client::wire::QuerySnapshotReply& out);
void ToWire(const replication::TrainerEvent& event, client::wire::Event& out);

}  // namespace backstay::tools
