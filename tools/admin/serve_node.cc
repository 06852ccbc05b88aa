// The queries' seams, taken from a real node.

#include "tools/admin/admin_service.h"
#include "tools/node/node.h"

namespace backstay::tools {

void AdminService::Serve(Node& node, replication::MetadataStore& metadata,
                         replication::Messenger& messenger, const StoreId& store) {
  AdminSeams seams;
  seams.executor = &executor_;
  seams.metadata = &metadata;
  seams.messenger = &messenger;
  seams.store = store;
  seams.self = [&node] { return node.self(); };
  seams.members = [&node]() -> const replication::MembershipView& { return node.members(); };
  seams.header = [&node](const JobName& job) { return node.router().MakeHeader(job); };
  seams.describe = [&node] { return node.Describe(); };
  Serve(std::move(seams));
}

}  // namespace backstay::tools
