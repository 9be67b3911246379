"""The best legal plan at one rate, by any number of the summary"""
