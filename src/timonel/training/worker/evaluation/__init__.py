"""What an evaluator and the trainers share: results, what follows from them, who validates."""
