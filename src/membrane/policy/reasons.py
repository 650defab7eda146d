"""Why something is refused: one row for each reason.

Theory of operation
-------------------
A ``Reason`` *is* its text, so that events, records and answers hold what they always held, and it knows what hangs on
it: what a person reads when no rule should lift it, whether a person may be asked about it, whether a rule is learned
from it, and the status of HTTP that answers a request.  Code compares with the names below, never with a sentence.
Text that comes back from a record, which another version may have written, becomes a reason by ``REASONS.get``; what is
not found has no properties and is shown as it is.

Refusals that the kernel made alone have the name of an errno instead ("EPERM"), and an upstream that failed has its
cause: neither is a reason of the policy, ``Reason`` with the properties of none carries them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Reason(str):
    """The text of a reason, and what hangs on it.

    Attributes:
        floor: what is said in place of a rule that would allow it, as no line in a file should lift it without thought;
            empty: it is no floor.
        askable: means "no rule decides": a person may be asked (``--ask``).
        learned: means "no rule yet": ``learn`` proposes one.
        untold: on the record and in no summary: nobody asked for it, and nothing goes without it.
        status: of the answer to a refused HTTP request (RFC 9110 section 15.5, RFC 6585 section 4).
    """

    __slots__ = ("askable", "floor", "learned", "status", "untold")
    floor: str
    askable: bool
    learned: bool
    status: int
    untold: bool

    def __new__(
        cls,
        text: str,
        *,
        floor: str = "",
        askable: bool = False,
        learned: bool = False,
        status: int = 403,
        untold: bool = False,
    ) -> Reason:
        self = super().__new__(cls, text)
        self.floor, self.askable, self.learned, self.status, self.untold = floor, askable, learned, status, untold
        return self


NAME_NOT_ALLOWED = Reason("name not allowed", askable=True, learned=True)
NAME_MALFORMED = Reason("name malformed", floor="not a host name")
ADDRESS_NOT_ALLOWED = Reason("address not allowed", askable=True, learned=True)
PORT_NOT_ALLOWED = Reason("port not allowed", askable=True, learned=True)
DENIED_BY_RULE = Reason("denied by rule")
# A name resolved to a private, loopback or reserved address.
PRIVATE_ADDRESS = Reason(
    "private address", floor="a name may not lead to a private address; a rule for the address itself opens it"
)
# Link-local or cloud metadata.
METADATA_ADDRESS = Reason(
    "metadata address", floor="cloud metadata and link-local addresses open only to a rule for the exact address"
)
NAME_DIFFERS_FROM_SNI = Reason("name differs from SNI", floor="the TLS name must be the name that was resolved")
TLS_WITHOUT_SNI = Reason("TLS without SNI", floor="the TLS handshake must name the host")
METHOD_NOT_ALLOWED = Reason("method not allowed", askable=True, learned=True)
PATH_NOT_ALLOWED = Reason("path not allowed", askable=True, learned=True)
REQUEST_MALFORMED = Reason("request malformed", floor="ambiguous requests are never forwarded", status=400)
NOT_HTTP = Reason("not HTTP", floor="a rule with paths or methods admits HTTP only")
# On a connection by name: its first bytes are neither TLS nor those of a known protocol.
PROTOCOL_NOT_KNOWN = Reason("protocol not known")
LIMIT_REACHED = Reason("limit reached", floor="a limit of the policy or of the sandbox", status=429)
HIDDEN = Reason("hidden")
READ_ONLY = Reason("read-only", learned=True)
PROTECTED_NAME = Reason("protected name", floor="a program outside the sandbox would run it or obey it")
GIT_SETTING = Reason("git setting")  # of a repository: not one that a command may change
NOT_IN_THE_VIEW = Reason("not in the view", learned=True)
SOCKET_NOT_ALLOWED = Reason("socket not allowed", learned=True)
MISPLACED_SECRET = Reason(
    "secret not for this place", floor="a secret goes to the hosts, paths and the field that its rule names"
)
OPERATION_NOT_ALLOWED = Reason("operation not allowed", askable=True)  # of the service behind a socket
QUERY_TYPE_NOT_ANSWERED = Reason("query type not answered", floor="only A and AAAA are answered")
CALLER_UNREADABLE = Reason(
    "caller cannot be read", floor="the program may be executed and not read: what it does could not be recorded"
)
# ICMP to the outside, broadcasts: nothing opens it.
NOT_RELAYED = Reason("protocol not relayed", floor="only TCP, and UDP where a rule opens the port, leave the sandbox")
# Outside, each user who executes it gets the caller's group.
SET_GROUP_ID = Reason(
    "set-group-ID file", floor="outside, any user who executes it would get your group; a directory may have the bit"
)
# chown(2) of a root caller's command (``tracer.owners``).
OWNER_KEPT = Reason(
    "owner kept", floor="files that root inside makes stay yours: the call succeeded and changed nothing"
)
# Where apt asks for other servers of a host that is allowed, before it asks for the host (RFC 2782).
HTTP_SERVICE_RECORD = Reason("service record of HTTP", untold=True)
# The C library's question for nscd (``tracer.lookups``).
NAME_SERVICE_CACHE = Reason("name service cache", untold=True)

# The closed list (``AccessDenied.reason``), by text.
REASONS: Mapping[str, Reason] = {each: each for each in list(globals().values()) if isinstance(each, Reason)}
