"""What is learnt. A task joins a module with its losses and metrics; it knows no data or loop."""
