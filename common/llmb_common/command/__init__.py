"""The manners of every command: what it prints, how it fails, is interrupted, and keeps secrets."""
