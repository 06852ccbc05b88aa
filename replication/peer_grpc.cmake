#Carrying the control messages over gRPC.
backstay_proto(peer_service_proto GRPC PROTOS peer_service.proto LINK backstay_peer_proto)

    backstay_library(peer_grpc SOURCES peer_grpc.cc LINK backstay_base backstay_peer_proto
                         backstay_peer_service_proto)
