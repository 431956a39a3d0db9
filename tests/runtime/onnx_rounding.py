"""What rounding can do to the networks of onnx.backend.test's `light`.

Their weights are all 0.02, so that nothing below zero is ever added: every product and every sum is of
numbers that are not negative, and nothing cancels (but for the mean of 0.02 that a batch norm takes off, which
is not counted: the bound is too strict there). A sum of n such products, in any order, is then off by
at most n units of rounding of itself (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), and
the relative errors of operands pass on as they are. Followed through the network this bounds the relative
difference of two runs that add in different orders.
"""

import math

import numpy
import onnx
import onnx.numpy_helper

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
# x / (k + a·Σx²)^b with b of at most 3/4 passes on the errors of x once, and those of the sum 2·b times.
NORMALISATION = 2.5


def logits(model):
    """The model up to its last softmax, and whether it has one."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    last = out.graph.node[-1]
    if last.op_type != "Softmax":
        return out, False
    out.graph.output[0].name = last.input[0]
    del out.graph.node[-1]
    return out, True


def in_double(model):
    """The model with all of its float32 in float64."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    tensors = list(out.graph.initializer)
    for node in out.graph.node:
        tensors += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    for tensor in tensors:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            wide = onnx.numpy_helper.to_array(tensor).astype("float64")
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    for value in [*out.graph.input, *out.graph.output, *out.graph.value_info]:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return out


def shapes_of_constants(graph):
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = {name: list(tensor.shape) for name, tensor in known.items()}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = known[node.input[0]].tolist()
        elif node.op_type == "Reshape" and node.input[0] in shapes:
            whole = numpy.empty(shapes[node.input[0]], "bool")
            shapes[node.output[0]] = list(whole.reshape(known[node.input[1]]).shape)
    return shapes


def summands(node, shapes):
    """How many roundings an element of the node's result has seen, at most."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Conv":
        return math.prod(shapes[node.input[1]][1:]) + 1
    if node.op_type == "Gemm":
        return shapes[node.input[1]][1 if attributes.get("transB", 0) else 0] + 3
    if node.op_type == "AveragePool":
        return math.prod(attributes["kernel_shape"]) + 1
    if node.op_type == "GlobalAveragePool":
        return 64 * 64  # no network pools more
    if node.op_type == "LRN":
        return attributes["size"] + 8
    return {"BatchNormalization": 8, "Softmax": 0, "Add": 1, "Mul": 1}.get(node.op_type, len(node.input))


def bound(model, dtype):
    """Largest relative difference of two runs' elements by rounding alone."""
    shapes = shapes_of_constants(model.graph)
    units = {}
    for node in model.graph.node:
        before = max((units.get(name, 0) for name in node.input), default=0)
        grown = NORMALISATION * before if node.op_type == "LRN" else before
        units[node.output[0]] = grown + summands(node, shapes)
    return 2 * units[model.graph.output[0].name] * UNIT[dtype]


def difference(got, want):
    """Largest difference of two elements relative to them; infinite where they are not finite and positive."""
    if got.shape != want.shape or not (numpy.isfinite(got).all() and numpy.isfinite(want).all()):
        return math.inf
    if not ((got > 0).all() and (want > 0).all()):
        return math.inf
    got, want = got.astype("float64"), want.astype("float64")
    return float(numpy.max(numpy.abs(got - want) / want))


def softmax(values):
    """Along dimension 1, in float64."""
    wide = values.astype("float64")
    powers = numpy.exp(wide - wide.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
