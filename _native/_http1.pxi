# What is parsed and written of HTTP/1.1 itself. A part of _core.pyx.

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

cdef extern from "Python.h":
    str PyUnicode_DecodeLatin1(const char *data, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyUnicode_IS_ASCII(object text)

cdef enum:
    MOST_KNOWN_NAMES = 1024
    LONGEST_KNOWN_NAME = 64

cdef enum:
    PLAIN_NAME
    LENGTH_NAME
    OTHER_NAME

# Names of requests' headers, as they were sent, with the keys that they have in an environ.
cdef dict ENVIRON_KEYS = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}

# Names of answers' headers, with what is to be done with them: asked of the server once for each.
cdef dict ANSWER_NAMES = {}

TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


cdef inline str part_of(const uint8_t *data, WrPart part):
    return PyUnicode_DecodeLatin1(<const char *> data + part.start, part.len, NULL)


cdef str environ_key(bytes name):
    lower = name.lower()
    key = ENVIRON_KEYS.get(lower)
    if key is None:
        key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
    if len(ENVIRON_KEYS) < MOST_KNOWN_NAMES and len(name) <= LONGEST_KNOWN_NAME:  # as clients choose them
        ENVIRON_KEYS[name] = key
    return key


def plain_head(bytes data not None, dict environ not None, uint32_t line, uint32_t headers, uint32_t header):
    cdef WrHead head
    cdef WrBounds bounds
    cdef uint32_t index
    cdef const uint8_t *start = data_of(data)
    cdef PyObject *known
    bounds.line, bounds.headers, bounds.header = line, headers, header
    if not wr_plain_head(start, PyBytes_GET_SIZE(data), bounds, &head):
        return None
    environ["REQUEST_METHOD"] = part_of(start, head.method)
    environ["RAW_URI"] = part_of(start, head.target)
    environ["PATH_INFO"] = part_of(start, head.path)
    environ["QUERY_STRING"] = part_of(start, head.query)
    for index in range(head.header_count):
        name = PyBytes_FromStringAndSize(<const char *> start + head.headers[index].name.start,
                                         head.headers[index].name.len)
        known = PyDict_GetItem(ENVIRON_KEYS, name)
        environ[environ_key(name) if known is NULL else <object> known] = part_of(start, head.headers[index].value)
    return head.end, head.content_length, head.close


cdef int answer_name(str name, own):
    cdef int kind = OTHER_NAME
    lower = name.lower()
    if lower == "content-length":
        kind = LENGTH_NAME
    elif name and TOKEN.issuperset(lower) and name.isascii() and not own(name):
        kind = PLAIN_NAME
    if len(ANSWER_NAMES) < MOST_KNOWN_NAMES and len(name) <= LONGEST_KNOWN_NAME:
        ANSWER_NAMES[name] = kind
    return kind


cdef bint is_plain_value(const char *data, Py_ssize_t size):
    """Whether it is printable ASCII that neither begins nor ends with white space."""
    cdef Py_ssize_t index
    if size and (data[0] == c" " or data[size - 1] == c" "):
        return False
    for index in range(size):
        if not c" " <= data[index] <= c"~":
            return False
    return True


def header_lines(list headers not None, own not None):
    cdef Py_ssize_t size
    cdef const char *data
    cdef PyObject *known
    cdef int kind
    cdef list pieces = []
    length = None
    for name, value in headers:
        if type(name) is not str or type(value) is not str or not PyUnicode_IS_ASCII(value):
            return None
        known = PyDict_GetItem(ANSWER_NAMES, name)
        kind = answer_name(name, own) if known is NULL else <int> (<object> known)
        data = PyUnicode_AsUTF8AndSize(value, &size)
        if not is_plain_value(data, size):
            return None
        if kind == LENGTH_NAME:
            if length is not None or not value.isdecimal():
                return None
            length = int(value)
        elif kind != PLAIN_NAME:
            return None
        pieces.append(name)
        pieces.append(": ")
        pieces.append(value)
        pieces.append("\r\n")
    return "".join(pieces), length
