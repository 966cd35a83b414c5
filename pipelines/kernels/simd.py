"""Four floats at a time, for kernels that Numba compiles.

LLVM does not find by itself that the channels of a pixel can share one vector. So a vector of four floats is made known
to Numba here, with the few operations that the resampling kernel needs; the kernel stays plain loops over them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, 4)
_INT = ir.IntType(32)


class Float4(types.Type):
    """The type of a vector of four float32."""

    def __init__(self) -> None:
        super().__init__(name="float4")


float4 = Float4()


@register_model(Float4)
class _Float4Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:  # noqa: ANN401
        super().__init__(manager, kind, _FLOATS)


@intrinsic
def zero4(typing: Any) -> Any:  # noqa: ANN401
    """() -> four zeros."""
    return float4(), lambda context, builder, signature, arguments: ir.Constant(_FLOATS, [0.0] * 4)


@intrinsic
def rgb4(typing: Any, red: Any, green: Any, blue: Any) -> Any:  # noqa: ANN401
    """(red, green, blue) -> the three and a zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        vector = ir.Constant(_FLOATS, [0.0] * 4)
        for lane, value in enumerate(arguments):
            vector = builder.insert_element(vector, value, ir.Constant(_INT, lane))
        return vector

    return float4(types.float32, types.float32, types.float32), generate


@intrinsic
def load4(typing: Any, array: Any, place: Any) -> Any:  # noqa: ANN401
    """(array, place) -> array[place : place + 4] of a contiguous float32 array; not checked against its end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        vector = builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()))
        vector.align = 4
        return vector

    return float4(array, types.intp), generate


@intrinsic
def prefetch(typing: Any, array: Any, place: Any) -> Any:  # noqa: ANN401
    """(array, place): array[place] will be read soon; places outside the array are fine."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], *arguments), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, _INT(0), _INT(3), _INT(1)])  # to read, into the first cache, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def multiply_add(typing: Any, total: Any, value: Any, factor: Any) -> Any:  # noqa: ANN401
    """(total, value, factor), float32 -> total + value * factor, rounded once; LLVM makes vectors of it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        total, value, factor = arguments
        return builder.fma(value, factor, total)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def multiply_add4(typing: Any, total: Any, vector: Any, factor: Any) -> Any:  # noqa: ANN401
    """(total, vector, factor) -> total + vector * factor, the factor being one float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        total, vector, factor = arguments
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(undefined, factor, ir.Constant(_INT, 0))
        factors = builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT, 4), [0] * 4))
        return _multiply_add(builder, total, vector, factors)

    return float4(float4, float4, types.float32), generate


@intrinsic
def scale4(typing: Any, vector: Any, scale: Any, offset: Any) -> Any:  # noqa: ANN401
    """(vector, scale, offset) -> vector * scale + offset, lane by lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        vector, scale, offset = arguments
        return _multiply_add(builder, offset, vector, scale)

    return float4(float4, float4, float4), generate


@intrinsic
def clamp4(typing: Any, vector: Any) -> Any:  # noqa: ANN401
    """(vector) -> its lanes, no less than 0 and no more than 255."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        [vector] = arguments
        for comparison, bound in (("<", 0.0), (">", 255.0)):
            bounds = ir.Constant(_FLOATS, [bound] * 4)
            vector = builder.select(builder.fcmp_ordered(comparison, vector, bounds), bounds, vector)
        return vector

    return float4(float4), generate


@intrinsic
def store4(typing: Any, array: Any, place: Any, vector: Any) -> Any:  # noqa: ANN401
    """(array, place, vector): array[place : place + 4] = vector, of a float32 array; not checked against its end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        array_value, place, vector = arguments
        _store4(context, builder, signature.args[0], array_value, place, vector)
        return context.get_dummy_value()

    return types.void(array, types.intp, float4), generate


@intrinsic
def store_channels4(
    typing: Any,  # noqa: ANN401
    planes: Any,  # noqa: ANN401
    stride: Any,  # noqa: ANN401
    place: Any,  # noqa: ANN401
    one: Any,  # noqa: ANN401
    two: Any,  # noqa: ANN401
    three: Any,  # noqa: ANN401
    four: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """(planes, stride, place, four pixels): their c-th floats go to planes[c * stride + place :][:4], c = 0, 1, 2."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        planes, stride, place, one, two, three, four = arguments
        mask = lambda *lanes: ir.Constant(ir.VectorType(_INT, 4), lanes)  # noqa: E731
        low, high = (
            [builder.shuffle_vector(a, b, mask(*lanes)) for a, b in ((one, two), (three, four))]
            for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))
        )
        channels = (
            builder.shuffle_vector(*low, mask(0, 1, 4, 5)),
            builder.shuffle_vector(*low, mask(2, 3, 6, 7)),
            builder.shuffle_vector(*high, mask(0, 1, 4, 5)),
        )
        for channel, vector in enumerate(channels):
            offset = builder.add(builder.mul(stride, ir.Constant(stride.type, channel)), place)
            _store4(context, builder, signature.args[0], planes, offset, vector)
        return context.get_dummy_value()

    return types.void(planes, types.intp, types.intp, float4, float4, float4, float4), generate


@intrinsic
def store_pixels4(
    typing: Any,  # noqa: ANN401
    pixels: Any,  # noqa: ANN401
    place: Any,  # noqa: ANN401
    one: Any,  # noqa: ANN401
    two: Any,  # noqa: ANN401
    three: Any,  # noqa: ANN401
    four: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """(pixels, place, four pixels): their first three floats go to pixels[place :][:12]; the one behind is spoilt."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        pixels, place, *vectors = arguments
        for number, vector in enumerate(vectors):
            offset = builder.add(place, ir.Constant(place.type, 3 * number))
            _store4(context, builder, signature.args[0], pixels, offset, vector)
        return context.get_dummy_value()

    return types.void(pixels, types.intp, float4, float4, float4, float4), generate


@intrinsic
def convert(typing: Any, array: Any, place: Any, value: Any) -> Any:  # noqa: ANN401
    """(array, place, float32): array[place] = value as `_converted` says."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        array_value, place, value = arguments
        pointer = _pointer(context, builder, signature.args[0], array_value, place)
        builder.store(_converted(builder, value, array.dtype), pointer)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


@intrinsic
def stream4(typing: Any, array: Any, place: Any, vector: Any) -> Any:  # noqa: ANN401
    """(array, place, vector): array[place : place + 4] = the vector as `_converted` says, past the caches.

    The place in memory must be a multiple of four values.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        array_value, place, vector = arguments
        values = _converted(builder, vector, array.dtype)
        pointer = _pointer(context, builder, signature.args[0], array_value, place)
        store = builder.store(values, builder.bitcast(pointer, values.type.as_pointer()))
        store.align = 4 * array.dtype.bitwidth // 8
        store.set_metadata("nontemporal", builder.module.add_metadata([_INT(1)]))
        return context.get_dummy_value()

    return types.void(array, types.intp, float4), generate


def _converted(builder: Any, value: Any, dtype: Any) -> Any:  # noqa: ANN401
    """Floats as float32, as rounded uint8, or as float16, which Numba has uint16 for on a CPU."""
    kind = (lambda item: ir.VectorType(item, 4)) if value.type == _FLOATS else (lambda item: item)
    if dtype == types.uint16:
        return builder.bitcast(builder.fptrunc(value, kind(ir.HalfType())), kind(ir.IntType(16)))
    if dtype == types.uint8:
        half = ir.Constant(value.type, [0.5] * 4 if value.type == _FLOATS else 0.5)
        return builder.fptoui(builder.fadd(value, half), kind(ir.IntType(8)))
    return value


def _store4(context: Any, builder: Any, kind: Any, array: Any, place: Any, vector: Any) -> None:  # noqa: ANN401
    pointer = _pointer(context, builder, kind, array, place)
    builder.store(vector, builder.bitcast(pointer, _FLOATS.as_pointer())).align = 4


def _multiply_add(builder: Any, total: Any, vector: Any, factors: Any) -> Any:  # noqa: ANN401
    return builder.fadd(total, builder.fmul(vector, factors, flags=("fast",)), flags=("fast",))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:  # noqa: ANN401
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [place])
