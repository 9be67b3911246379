"""What fills in the tables of prices that the core reads, when a step first asks"""
