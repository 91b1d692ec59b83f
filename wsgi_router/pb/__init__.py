"""Generated protobuf messages and gRPC stubs of the SGLang scheduler service.

The modules ``common_pb2``, ``sglang_scheduler_pb2`` and ``sglang_scheduler_pb2_grpc`` are written at build
time from ``proto/wsgi_router/pb/*.proto`` and are not kept in the repository::

    python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. \\
        proto/wsgi_router/pb/*.proto
"""
