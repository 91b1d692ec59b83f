"""Our description of the scheduler service is the official one: names, numbers, types, labels, RPCs."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, ServiceDescriptor

from wsgi_router.pb import common_pb2, sglang_scheduler_pb2

SERVICE = "sglang.grpc.scheduler.SglangScheduler"
Facts = dict[str, Any]

# The official stubs bear the same full names as ours, so they cannot live in one process's default pool.
DUMP = """
import base64
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from smg_grpc_proto import sglang_scheduler_pb2
from smg_grpc_proto.generated import common_pb2
for module in common_pb2, sglang_scheduler_pb2:
    print(base64.b64encode(module.DESCRIPTOR.serialized_pb).decode())
"""


def well_known_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for module in (struct_pb2, timestamp_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return pool


def official_files() -> list[bytes]:
    run = subprocess.run([sys.executable, "-c", DUMP], capture_output=True, text=True, check=True, timeout=60)
    return [base64.b64decode(line) for line in run.stdout.split()]


def service_in(files: list[bytes]) -> ServiceDescriptor:
    pool = well_known_pool()
    for data in files:
        pool.AddSerializedFile(data)
    return pool.FindServiceByName(SERVICE)


def message_facts(message: Descriptor) -> Facts:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    oneofs = [oneof.name for oneof in proto.oneof_decl]
    fields = {
        field.name: (
            field.number,
            field.type,
            field.label,
            field.type_name,
            field.proto3_optional,
            oneofs[field.oneof_index] if field.HasField("oneof_index") else None,
        )
        for field in proto.field
    }
    reserved = {number for r in proto.reserved_range for number in range(r.start, r.end)}
    return {"fields": fields, "reserved": reserved, "map_entry": proto.options.map_entry}


def enum_facts(enum: EnumDescriptor) -> Facts:
    return {value.name: value.number for value in enum.values}


def facts(service: ServiceDescriptor) -> Facts:
    """All that a peer on the wire can notice, for the service and every type it reaches."""
    found: Facts = {}
    todo: list[Descriptor] = []
    for method in service.methods:
        found[f"rpc {method.name}"] = (
            method.input_type.full_name,
            method.output_type.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        todo += [method.input_type, method.output_type]
    while todo:
        message = todo.pop()
        if message.full_name in found:
            continue
        found[message.full_name] = message_facts(message)
        for field in message.fields:
            if field.message_type is not None:
                todo.append(field.message_type)
            if field.enum_type is not None:
                found[field.enum_type.full_name] = enum_facts(field.enum_type)
    return found


@pytest.fixture(scope="module")
def official() -> Facts:
    return facts(service_in(official_files()))


@pytest.fixture(scope="module")
def ours() -> Facts:
    return facts(sglang_scheduler_pb2.DESCRIPTOR.services_by_name["SglangScheduler"])


def test_same_rpcs_and_types(official: Facts, ours: Facts) -> None:
    assert ours.keys() == official.keys()
    assert sum(name.startswith("rpc ") for name in ours) == 15


def test_same_facts(official: Facts, ours: Facts) -> None:
    for name, fact in official.items():
        assert ours[name] == fact, name


def test_we_describe_nothing_that_the_service_does_not_reach(ours: Facts) -> None:
    for file in (common_pb2.DESCRIPTOR, sglang_scheduler_pb2.DESCRIPTOR):
        for described in [*file.message_types_by_name.values(), *file.enum_types_by_name.values()]:
            assert described.full_name in ours


def change_number(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.message_type[0].field[0].number = 999


def change_type(file: descriptor_pb2.FileDescriptorProto) -> None:
    field = next(f for m in file.message_type if m.name == "SamplingParams" for f in m.field if f.name == "n")
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64


def change_label(file: descriptor_pb2.FileDescriptorProto) -> None:
    field = next(f for m in file.message_type if m.name == "TokenizedInput" for f in m.field)
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def change_streaming(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.service[0].method[0].server_streaming = False


def drop_field(file: descriptor_pb2.FileDescriptorProto) -> None:
    message = next(m for m in file.message_type if m.name == "TokenizedInput")
    del message.field[-1]


@pytest.mark.parametrize("change", [change_number, change_type, change_label, change_streaming, drop_field])
def test_the_comparison_notices(official: Facts, change: Any) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(sglang_scheduler_pb2.DESCRIPTOR.serialized_pb)
    change(file)
    changed = service_in([common_pb2.DESCRIPTOR.serialized_pb, file.SerializeToString()])
    assert facts(changed) != official
