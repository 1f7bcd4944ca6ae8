-- lib/supply: those that wait are told how many permits there are, or have come; never a number below 0.
-- defines  supply(permits): how many heard it. KEYS[2] is the channel, ARGV[1] the publish command
local function supply(permits)
  if permits >= 0 then
    return redis.call(ARGV[1], KEYS[2], permits)
  end
  return 0
end
