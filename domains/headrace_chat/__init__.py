"""The task pack `chat`: everyday questions, to be answered freely or under instructions.

`topics` are what is talked about, `questions` what is asked, `replies` references, `form` the
verifier of free replies, `demands` the instructions, `domains` the two domains. Found by the
entry point `headrace.packs`; imports the vocabulary of headrace, its kit and its verifier
`instructions`. It judges how a reply is made, never whether it is true.
"""

from __future__ import annotations

from headrace.kit import Domains
from headrace_chat.domains import INSTRUCTED, OPEN, Chat
from headrace_chat.form import ChatForm, Form

__all__ = ["INSTRUCTED", "OPEN", "Chat", "ChatForm", "Form", "pack"]

pack = Domains(OPEN, INSTRUCTED)
"""What the entry point offers."""
