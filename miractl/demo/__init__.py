"""The bundled demo model and how it was made."""
