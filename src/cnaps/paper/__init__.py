"""The paper's comparisons: compared learners, continual methods and experiments; nothing else imports them."""
