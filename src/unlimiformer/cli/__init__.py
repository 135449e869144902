"""The command line. Each command's file imports torch and transformers only when it runs."""
