-- lib/limit: the numbers of permits that Redisson can count with: an int of Java.
-- defines  most_permits;
--          beyond_limit(number, more): the error of adding more to a number, if that leaves the
--          limits or goes further beyond them; else nil

local most_permits = 2147483647

local function beyond_limit(number, more)
  local sum = number + more
  local is_beyond = sum > most_permits and sum > number or sum < -most_permits and sum < number
  if is_beyond then
    return redis.error_reply(string.format(
      'LIMIT %.0f and %s more are outside of -%d to %d', number, more, most_permits, most_permits))
  end
end
